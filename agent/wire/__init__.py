"""The contract between master and agent: frozen, strict messages in camelCase. Imports neither side."""
