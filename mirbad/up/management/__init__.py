"""Commands of an operator's shell."""
