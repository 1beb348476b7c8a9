"""Leaves that every part of the master may use: clock, ids, errors, states, settings, secrets."""
