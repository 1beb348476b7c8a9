"""Management commands of the nodes."""
