"""Loops: thin drivers of one-step functions. Each returns whether there was work."""
