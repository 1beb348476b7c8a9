"""`/v1`: one core with several doors, from a client's request to the engine of a node and back, byte by byte.

`door` is the ASGI app beside Django, `inside` serves pages of the same process; both go through `exchange`. Nothing on
this path uses middleware, a session, the ORM or a lock: it reads `table`, which `loader` rebuilds in a thread.
"""
