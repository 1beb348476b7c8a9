"""`/v1`: one core with several doors, from a client's request to the engine of a node and back, byte by byte.

`front` is the fast door, `door` the ASGI app beside Django, `inside` serves pages of the same process. The first two
run a `visit` for each request, and all go through `exchange`. Nothing on this path uses middleware, a session, the ORM
or a lock: it reads `table`, which `loader` rebuilds in a thread, and counts in memory, which `recorder` writes.
"""
