"""Enrollment: one-time tokens, the join itself, and the listener that machines connect to."""
