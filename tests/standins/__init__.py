"""The three stand-ins for an agent, from the quickest to the most real. tests/README.md says which is for what."""
