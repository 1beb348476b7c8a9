"""Announcements of what changed, once it has committed. A hint says that something changed; rows say what."""

from django.db import transaction

from mirbad.live import hints


def changed(model_id: str) -> None:
    """Tell open pages that `model_id` or its placements changed, after the caller's transaction."""

    def tell() -> None:
        hints.changed("models", model_id)

    transaction.on_commit(tell, robust=True)
