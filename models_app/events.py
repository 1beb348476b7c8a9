"""Invalidations of models, sent once the transaction has committed. They name a topic; pages read the rows again."""

from django.db import transaction

from mirbad.live import invalidations


def changed(model_id: str) -> None:
    """Announce after the caller's transaction that `model_id` or its placements changed."""

    def tell() -> None:
        invalidations.changed("models", model_id)

    transaction.on_commit(tell, robust=True)
