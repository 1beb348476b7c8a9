"""Destinations of backups: a folder, an SMB or NFS share, an S3 bucket.

All work at a destination is done by a process of its own (`python -m jobs.backup.destinations`): a server that does
not answer may keep a system call in the kernel for ever, and a mount must not outlive its use. `errand` starts it.
"""
