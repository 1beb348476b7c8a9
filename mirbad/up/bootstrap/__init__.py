"""The one-time steps of `make up` inside the master: database, people, keys, bootstrap node, starter model."""
