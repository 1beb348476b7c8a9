"""Commands for an operator's shell."""
