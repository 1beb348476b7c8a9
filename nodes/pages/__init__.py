"""Pages of the nodes app."""
