"""Whatever takes time and can fail half-way: durable operations and the loops that drive them."""
