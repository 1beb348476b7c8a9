"""Keys and certificates: the fleet's authority, the master's own identities, what nodes are issued."""
