"""The agent of a node: runs engines, answers the master over mutual TLS, keeps what it started in sight."""

__version__ = "0.1.0"
