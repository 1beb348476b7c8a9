"""What the machine says of itself now. Unknown is None, never 0."""
