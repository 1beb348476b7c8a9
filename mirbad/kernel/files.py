"""How many files and sockets this process may have open."""

import resource

import structlog

log = structlog.get_logger(__name__)


def allow_many() -> int:
    """Raise the limit of open files to the most that the system grants: a connection a node is many. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of open files stays as it is", limit=soft, why=str(error))
            return soft
    return hard
