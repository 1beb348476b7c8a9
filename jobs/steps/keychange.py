"""Calls to an agent about its key, each over a new connection, so that it shows its present key; and their input."""

from agent.wire.base import WireModel
from agent.wire.capability import AgentInfo
from agent.wire.pki import CertificateUpdate, CsrRequest, CsrResponse, PkiView, RotationAbort
from jobs.base import OperationData
from nodes.link import client, pools
from nodes.link.client import T
from nodes.pki.renewal import Staged


class RotateCertInput(OperationData):
    """Input of a rotation of one certificate. `base` is the key that the node had; `ca_rotation` requested it.

    `at_any_time` allows a node with an expired certificate.
    """

    base: str = ""
    at_any_time: bool = False
    ca_rotation: str = ""


def request_csr(node_id: str, rotation_id: str, key: str, *, at_any_time: bool = False) -> CsrResponse:
    """Return a signing request for the key of rotation `rotation_id`; a repeat gets the same key. Raises as `call`."""
    return _ask(node_id, "POST", "pki/csr", CsrRequest(rotation_id=rotation_id), CsrResponse, key, at_any_time)


def install(node_id: str, rotation_id: str, staged: Staged, key: str, *, at_any_time: bool = False) -> PkiView:
    """Install a certificate on the node, which shows it to new connections from then on. Raises as `call`."""
    order = CertificateUpdate(rotation_id=rotation_id, chain=staged.chain, ca_bundle=staged.bundle)
    return _ask(node_id, "PUT", "pki/certificate", order, PkiView, key, at_any_time)


def abort(node_id: str, rotation_id: str, key: str, *, at_any_time: bool = False) -> PkiView:
    """Have the node drop its staged key; the response names the key in use. Raises as `call`."""
    return _ask(node_id, "DELETE", "pki/next", RotationAbort(rotation_id=rotation_id), PkiView, key, at_any_time)


def look(node_id: str, *, at_any_time: bool = False) -> AgentInfo:
    """Return the node's identity over a new handshake; the key shown in it is the one in use. Raises as `call`."""
    return pools.loop_thread().run(client.acall_once(node_id, "GET", "info", answer=AgentInfo, at_any_time=at_any_time))


def _ask(node_id: str, method: str, path: str, body: WireModel, answer: type[T], key: str, at_any_time: bool) -> T:
    work = client.acall_once(node_id, method, path, body, answer=answer, operation_id=key, at_any_time=at_any_time)
    return pools.loop_thread().run(work)
