"""The routes of `/api` in this app."""
