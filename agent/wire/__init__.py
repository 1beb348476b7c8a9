"""The contract between master and agent: frozen, strict messages in camelCase. It imports neither side."""
