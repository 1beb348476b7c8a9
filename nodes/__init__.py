"""Machines: their identity, the permission to command them, and the state that they report."""
