"""Routes of `/api` in this app."""
