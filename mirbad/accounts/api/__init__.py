"""Admin tokens on `/api`."""
