"""What nodes say, gathered for a moment and written together: a thousand nodes cost a few statements, not thousands.

Only the last status of each node counts. Several threads never share one: it belongs to the watcher's event loop.
"""

from collections.abc import Mapping
from datetime import datetime

import structlog
from django.db import DataError, IntegrityError, transaction

from agent.wire.status import NodeStatus
from mirbad.kernel import clock
from models_app import routing, running
from models_app.placement import reconcile
from nodes import reachability
from nodes.models import Node
from nodes.states import ONLINE
from nodes.telemetry.keep import keep

log = structlog.get_logger(__name__)

AT_ONCE = 250
"""Nodes in one transaction: others that write wait for no more than these."""

Word = tuple[NodeStatus | None, datetime]
"""A status, or None for a sign of life without one, and when it came."""


class Reports:
    """What was heard and is not written yet."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}

    def heard(self, node_id: str, status: NodeStatus | None = None) -> None:
        """The node said something just now."""
        earlier = self._words.get(node_id)
        self._words[node_id] = (status or (earlier[0] if earlier else None), clock.now())

    def take(self) -> dict[str, Word]:
        """All that was heard; nothing is left."""
        words, self._words = self._words, {}
        return words

    def take_of(self, node_id: str) -> dict[str, Word]:
        """The same of one node."""
        word = self._words.pop(node_id, None)
        return {} if word is None else {node_id: word}

    def give_back(self, words: Mapping[str, Word]) -> None:
        """They could not be written; what was heard since is newer."""
        for node_id, (status, at) in words.items():
            later = self._words.get(node_id)
            self._words[node_id] = (status, at) if later is None else (later[0] or status, later[1])

    def clear(self) -> None:
        """Another watcher hears the nodes by now."""
        self._words.clear()


def chunks(words: Mapping[str, Word]) -> list[dict[str, Word]]:
    """`words` in parts that are written one after another, so that others get their turn to write."""
    ids = sorted(words)
    return [{pk: words[pk] for pk in ids[start : start + AT_ONCE]} for start in range(0, len(ids), AT_ONCE)]


def write(words: Mapping[str, Word]) -> frozenset[str]:
    """Write down what was heard. Returns the nodes whose lines must be made anew: they do not read Online.

    That is so for a node that another part found incompatible or obeying another master.
    """
    broken: set[str] = set()
    for chunk in chunks(words):
        try:
            broken.update(write_strictly(chunk))
        except (DataError, IntegrityError, ArithmeticError, ValueError, TypeError):
            # One of them said what cannot be kept: that must not cost the others anything.
            broken.update(*(_write_alone(node_id, word) for node_id, word in chunk.items()))
    return frozenset(broken)


def write_strictly(words: Mapping[str, Word]) -> set[str]:
    """`write` in one transaction; what cannot be kept raises whatever the database says of it."""
    with transaction.atomic():
        online = reachability.observe_many(words)
        running.observe_many({pk: status for pk, (status, _) in words.items() if status and pk in online})
        keep({pk: (status, at) for pk, (status, at) in words.items() if status and pk in online})
    return words.keys() - online


def _write_alone(node_id: str, word: Word) -> set[str]:
    try:
        return write_strictly({node_id: word})
    except (DataError, IntegrityError, ArithmeticError, ValueError, TypeError):
        log.exception("what a node said cannot be kept", node=node_id)
        return {node_id}


def write_loss(node_id: str, reason: str, heard: Mapping[str, Word]) -> None:
    """The line is broken; `heard` is what had come over it. Once the node does not read Online, nothing is known of
    what runs there.
    """
    with transaction.atomic():
        write(heard)
        reachability.lost(node_id, reason)
        if Node.objects.filter(pk=node_id).exclude(reachability=ONLINE).exists():
            running.mark_unreachable(node_id)


def write_first(node_id: str, status: NodeStatus, *, again: bool = False) -> None:
    """The status with which a line begins, and which of the models' GPUs are missing.

    `again`: the line was broken, so the node may have come back with another key, which the gateway is to ask for.
    """
    with transaction.atomic():
        if again:
            routing.bump()
        write({node_id: (status, clock.now())})
        reconcile.note_missing_gpus(node_id)
