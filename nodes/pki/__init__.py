"""Keys and certificates: the fleet's CA, the master's own identities, and the certificates of nodes."""
