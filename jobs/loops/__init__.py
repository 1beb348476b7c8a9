"""Loops: thin drivers of one-step functions. Each says whether there was work."""
