"""Shared plumbing of the admin API: problem+json, parsing, pagination."""
