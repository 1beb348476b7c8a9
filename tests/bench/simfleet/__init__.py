"""Many agents on one machine: each the agent's own server over real mutual TLS, on an address of 127.0.0.0/8.

Only the machine below an agent is made up: what its probes read, and one engine that changes its mind now and then.
"""
