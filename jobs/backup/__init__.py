"""Backups: one file with the configuration of a fleet, and with its secrets sealed by a passphrase."""
