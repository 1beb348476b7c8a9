"""Views of the nodes pages by noun: look up, parse, one call, respond."""
