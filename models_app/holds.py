"""Locks on models: one holder at a time, so that moves, jobs and people do not undo each other's work."""

from collections.abc import Collection, Mapping

from django.db import IntegrityError, transaction

from mirbad.kernel.errors import NotFound
from mirbad.live import invalidations
from models_app import events
from models_app.errors import ModelBusy
from models_app.models import Hold, ModelDefinition

_WAIT = "Wait for it to finish."
_WHAT_NOW = {
    "move": "Wait for it to finish, or cancel the move.",
    "revoke": "Wait for it to finish, or cancel the revoke.",
    "job": "Wait for it to finish, or cancel the job.",
    "restore": "Wait for it to finish, or cancel the configuration import.",
}


def _lock(model_id: str) -> None:
    # The definition's row is the lock, so that no holder gets between a check and the write that follows.
    if not ModelDefinition.objects.select_for_update().filter(pk=model_id).exists():
        raise NotFound(f"Model {model_id!r} does not exist.")


def take(model_id: str, holder_kind: str, holder_id: str, words: str) -> None:
    """Hold `model_id` in the caller's transaction; the same holder may take it again.

    `words` complete "… holds it", such as "a move to node X". Raises ModelBusy, NotFound.
    """
    with transaction.atomic():
        _lock(model_id)
        require_free(model_id, unless=holder_id)
        try:
            Hold.objects.update_or_create(
                model_id=model_id, defaults={"holder_kind": holder_kind, "holder_id": holder_id, "words": words}
            )
        except IntegrityError as error:
            raise ModelBusy(f"Model {model_id!r} is busy: another action started just now. Try again.") from error
        events.changed(model_id)


def take_each(holders: Mapping[str, str], holder_kind: str, words: str) -> None:
    """Hold each model of `holders` under the id that it names, in the caller's transaction, which has locked the rows.

    Raises ModelBusy.
    """
    rows = [
        Hold(model_id=model_id, holder_kind=holder_kind, holder_id=holder_id, words=words)
        for model_id, holder_id in holders.items()
    ]
    try:
        with transaction.atomic():
            Hold.objects.bulk_create(rows, batch_size=200)
    except IntegrityError as error:
        raise ModelBusy("One of the models is busy: another action started just now. Try again.") from error


def release_each(model_ids: Collection[str], holder_kind: str, prefix: str) -> None:
    """Release those of `model_ids` that are held under an id that begins with `prefix`, in the caller's transaction."""
    rows = Hold.objects.filter(model_id__in=model_ids, holder_kind=holder_kind, holder_id__startswith=prefix)
    rows.delete()
    transaction.on_commit(lambda: invalidations.changed_many("models", model_ids), robust=True)


def require_known(model_id: str) -> None:
    """Lock the model as `require_free` does, even if something holds it. Raises NotFound."""
    _lock(model_id)


def release(model_id: str, holder_id: str) -> bool:
    """Release `model_id`; False when `holder_id` does not hold it (any more)."""
    with transaction.atomic():
        gone, _ = Hold.objects.filter(model_id=model_id, holder_id=holder_id).delete()
        if gone:
            events.changed(model_id)
    return bool(gone)


def require_free(model_id: str, unless: str = "") -> None:
    """Raise ModelBusy if anything but `unless` holds `model_id`; in a transaction the answer stays true until its end.

    ModelBusy names the holder. Raises NotFound, too.
    """
    with transaction.atomic():
        _lock(model_id)
        hold = Hold.objects.filter(model_id=model_id).exclude(holder_id=unless).first()
    if hold is not None:
        raise ModelBusy(
            f"Model {model_id!r} is busy: {hold.words} holds it. {_WHAT_NOW.get(hold.holder_kind, _WAIT)}",
            fields={"holderKind": hold.holder_kind, "holderId": hold.holder_id, "holder": hold.words},
        )
