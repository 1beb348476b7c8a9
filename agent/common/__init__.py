"""Rules and readers that master and agent share. Imports neither side and no wire message."""
