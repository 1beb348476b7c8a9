"""Durable operations, and the loops that drive them."""
