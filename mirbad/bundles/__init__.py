"""The agent as an installable archive: built from this master's own code, and served by it."""

SENT_HOST = "mirbad.sent_host"
"""The key of the ASGI scope with the header Host as it was sent, which may be no name of this master."""
