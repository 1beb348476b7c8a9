"""Forms of the pages, a module a noun."""
