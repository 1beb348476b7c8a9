"""Requests of people and loops for operations. One transaction each: guard, change, audit, announce."""
