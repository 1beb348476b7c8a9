"""Announcements of changes, once they are committed."""

from django.db import transaction

from mirbad.live import invalidations


def changed(operation_id: str) -> None:
    """Announce to open pages that `operation_id` changed, after the caller's transaction."""

    def tell() -> None:
        invalidations.changed("operations", operation_id)

    transaction.on_commit(tell, robust=True)
