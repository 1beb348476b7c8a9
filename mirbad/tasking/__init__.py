"""Background tasks, enqueued on commit, and process heartbeats."""
