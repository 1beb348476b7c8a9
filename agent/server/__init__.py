"""The agent's face to the master: HTTP over mutual TLS, JSON in and out, events as lines."""
