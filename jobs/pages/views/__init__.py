"""View functions of the pages, a module a noun: look up, parse, one call, respond."""
