"""Commands: the watcher."""
