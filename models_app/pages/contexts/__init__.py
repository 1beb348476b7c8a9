"""View-models of the pages, a module a noun."""
