"""Calls to an agent about its key, each over a connection of its own, so that the key shown is the one shown now."""

from agent.wire.base import WireModel
from agent.wire.capability import AgentInfo
from agent.wire.pki import AbortOrder, CertificateOrder, CsrAnswer, CsrOrder, PkiView
from nodes.link import client, pools
from nodes.link.client import T
from nodes.pki.renewal import Staged


def ask_csr(node_id: str, rotation_id: str, key: str, *, at_any_time: bool = False) -> CsrAnswer:
    """A signing request for the key of rotation `rotation_id`; a repeat gets the same key. Raises as `call`."""
    return _ask(node_id, "POST", "pki/csr", CsrOrder(rotation_id=rotation_id), CsrAnswer, key, at_any_time)


def install(node_id: str, rotation_id: str, staged: Staged, key: str, *, at_any_time: bool = False) -> PkiView:
    """Give the node its certificate; it shows it to new connections from then on. Raises as `call`."""
    order = CertificateOrder(rotation_id=rotation_id, chain=staged.chain, ca_bundle=staged.bundle)
    return _ask(node_id, "PUT", "pki/certificate", order, PkiView, key, at_any_time)


def abort(node_id: str, rotation_id: str, key: str, *, at_any_time: bool = False) -> PkiView:
    """Let the node forget what waits; its answer says which key it has. Raises as `call`."""
    return _ask(node_id, "DELETE", "pki/next", AbortOrder(rotation_id=rotation_id), PkiView, key, at_any_time)


def look(node_id: str, *, at_any_time: bool = False) -> AgentInfo:
    """Who answers, over a whole new handshake; the key in it is in use from then on. Raises as `call`."""
    return pools.loop_thread().run(
        client.acall_alone(node_id, "GET", "info", answer=AgentInfo, at_any_time=at_any_time)
    )


def _ask(node_id: str, method: str, path: str, body: WireModel, answer: type[T], key: str, at_any_time: bool) -> T:
    work = client.acall_alone(node_id, method, path, body, answer=answer, operation_id=key, at_any_time=at_any_time)
    return pools.loop_thread().run(work)
