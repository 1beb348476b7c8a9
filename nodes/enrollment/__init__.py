"""How a machine becomes a node: one-time tokens, the join itself, and the listener that takes joins."""
