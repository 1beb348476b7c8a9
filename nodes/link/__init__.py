"""The mutual-TLS connection to agents: contexts with pins inside the handshake, calls, events, health."""
