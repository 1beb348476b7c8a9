"""HTTP/1.1 for both hops of model traffic: strict, streaming, small. asyncio and httptools only."""
