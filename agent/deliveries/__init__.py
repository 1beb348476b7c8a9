"""How an engine is run: one module per way, all behind the Protocol in `base`."""
