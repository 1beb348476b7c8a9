"""The `/v1` gateway: relays requests from *downstream* (the client) to *upstream* (the agent and its engine), as bytes.

The path of one request, file by file:

1. `protocol`: the connection, inside uvicorn (default); or `mirbad.asgi` and `service`, beside Django (`asgi`).
2. `downstream`: the interface to the caller of `/v1`; read the request, write the response.
3. `request`: one request from its first header to its last byte and its line in the access log.
4. `core`: the decisions (key, endpoint, model, routes), read from `table`; errors are in `errors`.
5. `body` or `form`: the model's name in the request body; `limits`: the limits of the key.
6. `upstream`: the choice of a replica (`balance`), retries, one exchange with its agent.
7. `pool`: warm connections to the agents.
8. `usage`: tokens, read from the response while it passes; `recorder`, `metrics` and `access` count it.

`service` holds the objects that all requests share. `loader` rebuilds the routing table in a thread, `invalidation`
wakes it. `catalog` lists models, `internal` serves pages of the same process. Nothing on the path uses middleware, a
session, the ORM or a lock.
"""
