"""The append-only record of actions: actor, time, outcome."""
