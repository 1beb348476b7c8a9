"""The agent as something that another machine can install: built from this master's own code, and served by it."""
