"""The deliveries: one module per way to run an engine, all behind the Protocol in `base`."""
