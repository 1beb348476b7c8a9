"""The agent of a node: runs engines and serves the master's requests over mutual TLS."""

__version__ = "0.1.0"
