"""What the surfaces share: typed background tasks, enqueued on commit, and process heartbeats."""
