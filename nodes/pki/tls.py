"""Server and client contexts from certificates and keys in the database instead of files."""

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A certificate chain (own certificate first) and its key, both PEM."""

    chain: tuple[str, ...]
    key_pem: bytes = field(repr=False)


class BrokenIdentity(Exception):
    """A chain and key that do not work: they do not match, or no peer that trusts the CA would accept them."""


def load_identity(context: ssl.SSLContext, identity: TlsIdentity) -> None:
    """Load a certificate and key into `context`. Raises BrokenIdentity when they do not match.

    OpenSSL's Python interface reads them from files only; these are files in memory, so that a key never reaches a
    disk.
    """
    with _memory_file("".join(identity.chain).encode() + identity.key_pem) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise BrokenIdentity(f"the certificate and its key cannot be loaded ({error.reason})") from error


def server_context(identity: TlsIdentity) -> ssl.SSLContext:
    """Return a TLS 1.3 server context without client certificates, without session tickets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    load_identity(context, identity)
    return context


def trusting_context(ca_bundle: Sequence[str]) -> ssl.SSLContext:
    """Return a TLS 1.3 client context that trusts exactly `ca_bundle`, never the system's roots, with strict checks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(cadata="".join(ca_bundle))
    return context


def prove(server: ssl.SSLContext, ca_bundle: Sequence[str], server_name: str) -> None:
    """Do a handshake with `server` in memory, as a client of each CA on its own. Raises BrokenIdentity."""
    for ca in ca_bundle:
        client = trusting_context((ca,))
        try:
            _shake_hands(client, server, server_name)
        except ssl.SSLError as error:
            raise BrokenIdentity(f"a client that trusts the CA rejects the new certificate ({error})") from error


class SwappingContext:
    """A front context whose certificate is swapped whole; the context that handshakes run on is never changed itself.

    The listening socket uses `context` for its whole life.
    """

    def __init__(self, first: ssl.SSLContext) -> None:
        self._inner = first
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        self.context.set_alpn_protocols(["http/1.1"])
        # Called for every handshake, also when the client names no host.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, front: ssl.SSLContext) -> None:
        connection.context = self._inner

    def swap(self, fresh: ssl.SSLContext) -> None:
        """Use `fresh` from the next handshake on; call `prove` on it first."""
        self._inner = fresh


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, server_name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=server_name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_ROUNDS):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
        if not ends:
            return
    raise ssl.SSLError("the handshake does not complete")


@contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mirbad-identity", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(data)
        yield str(path)
