"""The mutual-TLS line to agents: contexts with pins inside the handshake, calls, events, health."""
