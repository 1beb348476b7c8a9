"""The endpoint of a node: address, the name that its certificate must have, and a context that checks its key."""

import ssl
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from agent.common.tls_pins import pin
from agent.wire.base import node_server_name
from mirbad.kernel.errors import Conflict
from nodes.errors import NodeRevoked, no_such_node
from nodes.models import Node, NodePin
from nodes.pki import store
from nodes.pki.tls import TlsIdentity, load_identity, trusting_context
from nodes.states import APPROVED, PENDING, REVOKED

_CONTEXTS_KEPT = 512
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ssl does not name."""
_DIALLED = ("uid", "address", "port", "lifecycle", "is_bootstrap")

_contexts: "WeakValueDictionary[tuple[TlsIdentity, tuple[str, ...], frozenset[str]], ssl.SSLContext]"
_contexts = WeakValueDictionary()
_contexts_lock = threading.Lock()
# Connections hold their contexts; this keeps those that were created for a single call.
_recent: deque[ssl.SSLContext] = deque(maxlen=_CONTEXTS_KEPT)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and TLS context for one node. Equal endpoints may share connections, others must not.

    `ssl_context` is the same object as long as key, CA and pins are the same.
    """

    node_id: str
    host: str
    port: int
    server_name: str
    ssl_context: ssl.SSLContext = field(repr=False)
    pins: frozenset[str] = field(repr=False, default=frozenset())
    loopback_allowed: bool = field(repr=False, default=False)


def client_context(identity: TlsIdentity, ca_bundle: tuple[str, ...], pins: frozenset[str]) -> ssl.SSLContext:
    """Return a TLS 1.3 client context of the master for peers whose key is in `pins`. ValueError without a pin.

    The pin is checked inside the handshake, so a wrong peer never receives a byte of a request. One set of pins has one
    context while it is in use, however many nodes there are; different pins never share one.
    """
    if not pins:
        raise ValueError("a context without a pin would accept any node")
    with _contexts_lock:
        key = (identity, ca_bundle, pins)
        context = _contexts.get(key)
        if context is None:
            context = trusting_context(ca_bundle)
            load_identity(context, identity)
            pin(context, pins.__contains__)
            _contexts[key] = context
            _recent.append(context)
    return context


def endpoint(node_id: str, identity: TlsIdentity | None = None) -> Endpoint:
    """Return the endpoint of one node: by its approved key, or before approval by the pending one (for ``info`` only).

    `identity` is the certificate that the master presents; by default the one in use. Raises NotFound, NodeRevoked,
    Conflict (no key yet), Unavailable (the master has no identity yet).
    """
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    found = _endpoints([node], identity)
    if node_id not in found:
        raise Conflict(f"Node {node_id} has no known key. Re-pair it.")
    return found[node_id]


def endpoint_despite_expiry(node_id: str) -> Endpoint:
    """Return `endpoint` for a node whose certificate has expired: key and CA are checked, only the time is not.

    Its context is created for this one use and never shared. Raises the errors of `endpoint`.
    """
    known = endpoint(node_id)
    context = trusting_context(store.accepted())
    context.verify_flags |= _NO_CHECK_TIME
    load_identity(context, store.client_identity(store.master()))
    pin(context, known.pins.__contains__)
    return replace(known, ssl_context=context)


def endpoints() -> dict[str, Endpoint]:
    """Return the endpoints of all approved nodes that have a key, in a constant number of statements."""
    return _endpoints(Node.objects.filter(lifecycle=APPROVED).only(*_DIALLED))


def outdated(known: Collection[Endpoint]) -> list[Endpoint]:
    """Return those of `known` that are out of date: the node was revoked, re-paired or moved; in bulk."""
    ids = [one.node_id for one in known]
    now = _endpoints(Node.objects.exclude(lifecycle=REVOKED).filter(pk__in=ids).only(*_DIALLED))
    return [one for one in known if now.get(one.node_id) != one]


def _endpoints(nodes: Iterable[Node], identity: TlsIdentity | None = None) -> dict[str, Endpoint]:
    by_id = {node.pk: node for node in nodes}
    pins = _pins(by_id)
    if not pins:
        return {}
    identity, bundle = identity or store.client_identity(store.master()), store.accepted()
    return {
        node_id: Endpoint(
            node_id=node_id,
            host=by_id[node_id].address,
            port=by_id[node_id].port,
            server_name=node_server_name(str(by_id[node_id].uid)),
            ssl_context=client_context(identity, bundle, keys),
            pins=keys,
            loopback_allowed=by_id[node_id].is_bootstrap,
        )
        for node_id, keys in pins.items()
    }


def _pins(nodes: Mapping[str, Node]) -> dict[str, frozenset[str]]:
    """Return the keys that each node may present: current and next of an approved one, pending of a pending one."""
    found: dict[str, set[str]] = {}
    rows = NodePin.objects.filter(node_id__in=list(nodes)).values_list("node_id", "slot", "spki_sha256")
    for node_id, slot, spki in rows:
        waits = nodes[node_id].lifecycle == PENDING
        if waits == (slot == NodePin.PENDING):
            found.setdefault(node_id, set()).add(spki)
    return {node_id: frozenset(keys) for node_id, keys in found.items()}
