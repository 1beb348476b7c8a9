"""The routes of `/api` that live in this app."""
