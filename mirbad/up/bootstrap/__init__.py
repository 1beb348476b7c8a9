"""What `make up` does once inside the master: database, people, keys, its own node, the starter model."""
