"""Announcements of what changed, once it has committed."""

from django.db import transaction

from mirbad.live import hints


def changed(operation_id: str) -> None:
    """Tell open pages that `operation_id` moved, after the caller's transaction."""

    def tell() -> None:
        hints.changed("operations", operation_id)

    transaction.on_commit(tell, robust=True)
