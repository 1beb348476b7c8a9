"""The contract between master and agent: frozen, strict messages in camelCase. Both sides import it, it imports neither."""
