"""The agent's server for the master: HTTP over mutual TLS, JSON in and out, events as lines."""
