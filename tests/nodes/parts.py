"""Parts of the tests of nodes: keys, signing requests, nodes that joined by the real join, a real TLS peer."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.common import keys
from agent.wire.enroll import EnrollRequest, EnrollResponse, MachineSummary
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG, admin
from nodes import registry
from nodes.enrollment import join, tokens
from nodes.models import JoinToken, MasterIdentity, Node, NodePin
from nodes.pki import store
from nodes.pki.certs import Issuer, issue_node, make_ca, to_pem
from nodes.pki.tls import TlsIdentity, load_identity
from tests.waiting import pause_async

OPERATOR = admin("a session")
PEER = "192.0.2.10"


def make_csr(key, name: str = "whatever") -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def request_for(token: str, node_id: str, key, **also) -> EnrollRequest:
    return EnrollRequest(
        node_id=node_id,
        token=token,
        csr_pem=make_csr(key),
        machine=MachineSummary(os="Debian 12", arch="x86_64", hostname=f"{node_id}-host"),
        **also,
    )


@dataclass
class Machine:
    """A machine that enrolled: its key, and what the master gave it."""

    node_id: str
    key: ec.EllipticCurvePrivateKey
    answer: EnrollResponse
    token: str

    @property
    def spki(self) -> str:
        return keys.spki_of(self.key.public_key())

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.node_id)

    @property
    def identity(self) -> TlsIdentity:
        return TlsIdentity(self.answer.chain, keys.key_to_pem(self.key))


def enrolled(node_id: str = "pc-1", *, purpose: str = "join", peer: str = PEER, **also) -> Machine:
    actor = CONFIG if purpose == "bootstrap" else OPERATOR
    made = tokens.create(node_id, actor=actor, purpose=purpose)
    key = keys.new_key()
    answer = join.enroll(request_for(made.token, node_id, key, **also), peer)
    return Machine(node_id, key, answer, made.token)


def approved(node_id: str = "pc-1", **also) -> Machine:
    machine = enrolled(node_id, **also)
    registry.approve(node_id, machine.spki, OPERATOR)
    return machine


def local_machine(port: int, node_id: str = "local") -> Machine:
    """This machine's own node, approved: the only one that may have a loopback address.

    Another `node_id` is a node that came from elsewhere, dialled here all the same.
    """
    if node_id == "local":
        return approved("local", purpose="bootstrap", peer="127.0.0.1", address="127.0.0.1", port=port)
    machine = approved(node_id, port=port)
    Node.objects.filter(pk=node_id).update(is_bootstrap=True, address="127.0.0.1")
    return machine


def open_tokens(node_id: str) -> list[JoinToken]:
    return list(JoinToken.objects.filter(node_id_text=node_id, used_at=None, expires_at__gt=clock.now()))


def pin_of(node_id: str, slot: str = NodePin.CURRENT) -> str | None:
    return NodePin.objects.filter(node_id=node_id, slot=slot).values_list("spki_sha256", flat=True).first()


def fresh_issuer() -> Issuer:
    key = keys.new_key()
    return Issuer(make_ca(key, clock.now()), key)


def node_identity(issuer: Issuer, uid: str, key=None) -> TlsIdentity:
    key = key or keys.new_key()
    return TlsIdentity((to_pem(issue_node(issuer, key.public_key(), uid, clock.now())),), keys.key_to_pem(key))


def agent_context(identity: TlsIdentity, ca_bundle) -> ssl.SSLContext:
    """Return the TLS context of an agent's server: it requires the master's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata="".join(ca_bundle))
    load_identity(context, identity)
    return context


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Peer:
    """A TLS server in a thread that answers as `handler` says and remembers what it was asked."""

    port: int = 0
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    connections: int = 0


@contextmanager
def tls_peer(handler: Handler, context: ssl.SSLContext, port: int = 0) -> Iterator[Peer]:
    """Serve `handler` on 127.0.0.1 until the block ends."""
    peer, loop, ready = Peer(), asyncio.new_event_loop(), threading.Event()
    servers = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        peer.asked.append((request.method, request.path, dict(request.headers), await request.read()))
        return await handler(request)

    async def start() -> None:
        server = web.Server(answer)

        def connection():
            peer.connections += 1
            return server()

        listening = await loop.create_server(connection, "127.0.0.1", port, ssl=context)
        peer.port = listening.sockets[0].getsockname()[1]
        servers.extend((listening, server))

    async def stop() -> None:
        listening, server = servers
        listening.close()
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pause_async(0.01)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(stop())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield peer
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def master_spki() -> str:
    return MasterIdentity.objects.get().client_spki


def ca_bundle() -> tuple[str, ...]:
    return store.trust().bundle
