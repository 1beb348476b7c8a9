"""Request that this master stands down: guard, change, audit, announce in one transaction."""

from django.db import transaction

from audit import log as audit_log
from jobs import ledger
from jobs.requests import takeover
from mirbad.kernel.actor import Actor
from nodes import fencing
from nodes.errors import ConfirmationRequired

PHRASE = "this master stands down"
ACTION = "fencing.stand-down"


def request(confirm: str, actor: Actor) -> bool:
    """Have this master command no node until an owner takes over again; return False when it does that already.

    An open takeover ends, also one that was to end an earlier stand-down. Raises ConfirmationRequired (`confirm` is not
    `PHRASE`), Unavailable.
    """
    with audit_log.refusals_recorded(ACTION, actor), transaction.atomic():
        if confirm.strip() != PHRASE:
            raise ConfirmationRequired(f"Type “{PHRASE}” to confirm.")
        fencing.lock()
        claim, opened = fencing.present(), takeover.opened_here()
        if opened is None and fencing.stands_down():
            return False
        who = f"{actor.person or actor.name} ({actor.role})" if actor.role else actor.name
        fencing.stand_down(f"This master stands down, as {who} decided. Nodes are left to another master.")
        if opened is not None:
            ledger.abandon(opened, "This master stands down.")
        detail = f"Commanded under epoch {claim.epoch}." + (f" Ended {opened.kind} {opened.pk}." if opened else "")
        audit_log.record(ACTION, actor, detail=detail)
    return True
