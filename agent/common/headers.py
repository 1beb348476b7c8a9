"""Headers of `/v1` that pass from hop to hop: never credentials, cookies or addresses. Names in lower case."""

REQUEST_HEADERS = (b"accept", b"anthropic-beta", b"anthropic-version", b"content-type", b"openai-beta")
"""Headers of a client's request that reach the engine as they are."""

TRACE_HEADERS = (b"traceparent", b"tracestate", b"x-request-id")
"""Headers that the gateway checks or makes itself."""

RELAYED_REQUEST_HEADERS = frozenset({*REQUEST_HEADERS, *TRACE_HEADERS})
"""Headers of the gateway's request that the agent sends on to the engine."""

RESPONSE_HEADERS = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"openai-processing-ms",
        b"openai-version",
        b"retry-after",
    }
)
"""Headers of the engine's response that reach the client."""
