"""Building blocks that several kinds share: calls to agents about engines, files and keys, and their rules."""
