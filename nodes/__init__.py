"""Machines: who they are, whether we may talk to them, and what they say of themselves."""
