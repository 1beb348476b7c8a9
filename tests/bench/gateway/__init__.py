"""The gateway against other proxies, in one run on one machine: `make bench-gateway`."""
