"""HTTP/1.1 as both hops of model traffic speak it: strict, streaming, small. asyncio and httptools only."""
