"""One-time join tokens ``id.secret``: create, find, spend, revoke. The secret is shown once; only its digest is kept.

A token is spent by one conditional UPDATE in the transaction that stores the join. The same token with the same key
gets the stored answer until the token expires, so a lost response strands no machine.
"""

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from agent.common.node_ids import is_node_id
from agent.wire.enroll import EnrollResponse
from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG, Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.live import invalidations
from nodes import fencing
from nodes.enrollment import join_command
from nodes.enrollment.join_command import JoinCommand
from nodes.errors import NodeRevoked
from nodes.models import JoinToken, Node, NodePin, TokenAttempt
from nodes.pki import authority
from nodes.states import APPROVED, PENDING, REVOKED

SHORTEST = timedelta(minutes=10)
LONGEST = timedelta(hours=24)
WRONG_LIMIT = 10
_ATTEMPTS_KEPT = timedelta(hours=24)
_DISPLAY_NAME_LENGTH = 100

_SHAPE = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_DUMMY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


class JoinRejected(Exception):
    """The reason why a join is refused: for the log and the audit line, never for the machine that asked."""

    def __init__(self, why: str, *, alarm: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.alarm = alarm


def create(
    node_id: str,
    *,
    actor: Actor,
    purpose: str = JoinToken.JOIN,
    display_name: str = "",
    ttl: timedelta | None = None,
    browser: str = "",
) -> JoinCommand:
    """Create a token for one node and one purpose, and prune old ones.

    `browser` is the address of this master in the person's browser, such as ``https://master:8444``.

    Raises InvalidRequest, NotFound, Conflict, NodeRevoked, MasterFenced.
    """
    lifetime = settings().default_join_token_lifetime if ttl is None else ttl
    _check_shape(node_id, display_name, lifetime)
    if purpose not in {JoinToken.JOIN, JoinToken.REKEY, JoinToken.BOOTSTRAP}:
        raise InvalidRequest("The purpose must be join or rekey.")
    if purpose == JoinToken.BOOTSTRAP and (actor != CONFIG or node_id != settings().bootstrap_node):
        raise InvalidRequest("Only the master creates a token for its own machine.")
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    now = clock.now()
    authority.ensure()
    with transaction.atomic():
        fencing.require_unfenced()
        node = Node.objects.filter(pk=node_id).first()
        _check_node(node_id, node, purpose)
        _prune(now)
        row = JoinToken.objects.create(
            id=token_id,
            digest=digest_of(secret),
            purpose=purpose,
            node_id_text=node_id,
            display_name=display_name.strip(),
            expires_at=now + lifetime,
            created_by=actor.name,
        )
        minutes = int(lifetime.total_seconds() // 60)
        audit_log.record("node.join-token", actor, node_id=node_id, target=purpose, detail=f"valid for {minutes} min")
        transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return join_command.build(
        node_id,
        f"{token_id}.{secret}",
        purpose,
        row.expires_at,
        rekeyed=node if purpose == JoinToken.REKEY else None,
        browser=browser,
    )


def withdraw(node_id: str, actor: Actor) -> int:
    """Revoke every unused token of a node, so that none of them can enroll; return how many there were."""
    now = clock.now()
    with transaction.atomic():
        count = expire_unused(node_id, now)
        if count:
            audit_log.record("node.join-token", actor, node_id=node_id, target="withdraw", detail=f"{count} withdrawn")
            transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return count


def expire_unused(node_id: str, now: datetime) -> int:
    """Expire the node's unused tokens in the caller's transaction; return how many."""
    return JoinToken.objects.filter(node_id_text=node_id, used_at=None, expires_at__gt=now).update(expires_at=now)


def digest_of(secret: str) -> str:
    """Return the stored form of a secret. It has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def find(token: str, peer: str) -> tuple[JoinToken | None, str]:
    """Return the row of `token` with the token's id; ``(None, id or "")`` when the secret is not right.

    Does the same comparison for a known and an unknown id. A (token, peer) pair with 10 wrong attempts gets no row.
    """
    match = _SHAPE.fullmatch(token)
    token_id, secret = match.groups() if match else ("", "")
    row = JoinToken.objects.filter(pk=token_id).first()
    locked = TokenAttempt.objects.filter(token_id_text=token_id, peer=peer, wrong__gte=WRONG_LIMIT).exists()
    right = hmac.compare_digest(digest_of(secret).encode(), (row.digest if row else _DUMMY).encode())
    if row is None:
        return None, ""
    return (row if right and not locked else None), token_id


def count_wrong(token_id: str, peer: str) -> None:
    """Count one wrong attempt of `peer` on a token that exists. Call it outside the transaction that was refused."""
    TokenAttempt.objects.get_or_create(token_id_text=token_id, peer=peer)
    TokenAttempt.objects.filter(token_id_text=token_id, peer=peer).update(wrong=F("wrong") + 1, last_at=clock.now())


def require_usable(token: JoinToken, node_id: str, now: datetime, *, rekey: bool) -> None:
    """Check that the token is for this node and purpose, and has not expired; it may be spent. Raises JoinRejected."""
    if token.expires_at <= now:
        raise JoinRejected("the token has expired or was revoked")
    if token.node_id_text != node_id:
        raise JoinRejected("the token is for another node")
    if (token.purpose == JoinToken.REKEY) != rekey:
        raise JoinRejected(f"the token is for another purpose ({token.purpose})")


def spend(token: JoinToken, spki: str, peer: str, now: datetime) -> bool:
    """Spend the token for the key `spki`, in the caller's transaction. False when it was spent or expired meanwhile."""
    unspent = JoinToken.objects.filter(pk=token.pk, used_at=None, expires_at__gt=now)
    return bool(unspent.update(used_at=now, used_by_spki=spki, used_from=peer[:64]))


def store_answer(token: JoinToken, answer: EnrollResponse) -> None:
    """Keep the answer to the join that spent the token, in the same transaction, for a repeated request."""
    JoinToken.objects.filter(pk=token.pk).update(answer=answer.to_wire())


def stored_answer(token: JoinToken | None, spki: str) -> EnrollResponse:
    """Return the answer of a spent token, to the key that spent it while the node has it. Raises JoinRejected."""
    if token is None or token.used_at is None or token.answer is None:
        raise JoinRejected("the token was revoked meanwhile")
    if token.used_by_spki != spki:
        raise JoinRejected("the token was used before, with another key", alarm=True)
    if not NodePin.objects.filter(node_id=token.node_id_text, spki_sha256=spki).exists():
        raise JoinRejected("the token was used before, and its key is no longer valid")
    return EnrollResponse.model_validate(token.answer)


def _check_shape(node_id: str, display_name: str, lifetime: timedelta) -> None:
    problems = []
    if not is_node_id(node_id):
        problems.append(
            {
                "code": "node_id_invalid",
                "message": "A node id has 1 to 40 lower-case letters, digits and hyphens, and starts with a letter or "
                "digit.",
                "field": "nodeId",
            }
        )
    if len(display_name.strip()) > _DISPLAY_NAME_LENGTH or not display_name.isprintable():
        problems.append(
            {
                "code": "display_name_invalid",
                "message": "A display name has up to 100 printable characters.",
                "field": "displayName",
            }
        )
    if not SHORTEST <= lifetime <= LONGEST:
        problems.append(
            {
                "code": "ttl_invalid",
                "message": "A token can be valid for 10 minutes to 24 hours.",
                "field": "ttlMinutes",
            }
        )
    if problems:
        raise InvalidRequest(" ".join(problem["message"] for problem in problems), problems=problems)


def _check_node(node_id: str, node: Node | None, purpose: str) -> None:
    if node is not None and node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked, and its id cannot be used again. Choose another id.")
    if purpose == JoinToken.REKEY:
        if node is None:
            raise NotFound(f"Node {node_id} not found. Create a join token instead.")
        if not NodePin.objects.filter(node=node, slot__in=(NodePin.CURRENT, NodePin.PENDING)).exists():
            raise Conflict(f"Node {node_id} has no key to replace. Create a join token instead.")
        return
    if node is None:
        return
    if node.lifecycle == APPROVED:
        raise Conflict(f"Node {node_id} is already approved. Re-pair it with a rekey token, or choose another id.")
    if node.lifecycle == PENDING and purpose == JoinToken.JOIN:
        raise Conflict(f"Node {node_id} has enrolled and waits for approval. Approve or reject it first.")


def _prune(now: datetime) -> None:
    kept = settings().join_token_retention
    if kept > timedelta(0):
        JoinToken.objects.filter(Q(used_at__lt=now - kept) | Q(expires_at__lt=now - kept)).delete()
    TokenAttempt.objects.filter(last_at__lt=now - max(_ATTEMPTS_KEPT, LONGEST)).delete()
