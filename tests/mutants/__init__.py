"""Mutation testing: `make mutants` changes one expression of a module at a time and asks whether a test notices."""
