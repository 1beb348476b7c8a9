"""Files of this process: how many may be open, and who may read those that it creates."""

import os
import resource

import structlog

log = structlog.get_logger(__name__)


def keep_private() -> None:
    """Create files with mode 0600 and folders with mode 0700 from now on, whoever writes them; children inherit it."""
    os.umask(0o077)


def allow_many() -> int:
    """Raise the limit of open files to the system's maximum, since there is a connection per node. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of open files could not be raised", limit=soft, why=str(error))
            return soft
    return hard
