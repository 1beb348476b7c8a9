"""Enrollments that must not succeed: every way in which a request can be wrong, and each a little different."""

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.common.keys import new_key
from agent.identity import make_csr

BODY_LIMIT = 65_536


@dataclass(frozen=True)
class Tokens:
    """Tokens of a real master, by what became of them; each with its node id."""

    open: tuple[tuple[str, str], ...]
    expired: tuple[tuple[str, str], ...]
    withdrawn: tuple[tuple[str, str], ...]
    used: tuple[tuple[str, str], ...]
    rekey: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bad:
    """Bytes to send, and what kind of wrong they are. `ends` says that the listener may close the connection."""

    kind: str
    data: bytes
    ends: bool = False


def http(body: bytes, path: str = "/enroll", method: str = "POST", headers: str = "") -> bytes:
    """A well-formed request over a connection that stays."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def enrollment(token: str, node_id: str, csr: str, **also: Any) -> bytes:
    """The body of an enrollment."""
    value = {"nodeId": node_id, "token": token, "csrPem": csr, "address": "192.0.2.4", "port": 9443, **also}
    return json.dumps(value).encode()


class Intruder:
    """Makes bad requests, the same for the same seed (but for keys)."""

    def __init__(self, tokens: Tokens, seed: int) -> None:
        self._tokens, self._random = tokens, random.Random(seed)
        self._csrs = [make_csr(new_key(), f"pc-{n}") for n in range(8)]
        self._alien = _alien_csrs()
        self.kinds: tuple[Callable[[], Bad], ...] = (
            self._unknown_token, self._wrong_secret, self._expired, self._withdrawn, self._used, self._other_node,
            self._other_purpose, self._shapeless_token, self._bad_json, self._bad_member, self._damaged_csr,
            self._alien_csr, self._bad_address, self._huge, self._other_door, self._bad_http,
        )  # fmt: skip

    def next(self) -> Bad:
        """One more."""
        return self._random.choice(self.kinds)()

    def _csr(self) -> str:
        return self._random.choice(self._csrs)

    def _bad(self, kind: str, token: tuple[str, str], path: str = "/enroll", **also: Any) -> Bad:
        return Bad(kind, http(enrollment(token[0], token[1], self._csr(), **also), path))

    def _unknown_token(self) -> Bad:
        token_id = "".join(self._random.choices("0123456789abcdef", k=16))
        return self._bad("unknown token", (f"{token_id}.{self._secret()}", "pc-0"))

    def _secret(self) -> str:
        return "".join(self._random.choices(string.ascii_letters + string.digits + "-_", k=43))

    def _wrong_secret(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        token_id, secret = token.split(".")
        where = self._random.randrange(43)
        near = (
            secret[:where] + self._random.choice(string.ascii_letters.replace(secret[where], "")) + secret[where + 1 :]
        )
        return self._bad("wrong secret", (f"{token_id}.{self._random.choice((self._secret(), near))}", node_id))

    def _expired(self) -> Bad:
        return self._bad("expired", self._random.choice(self._tokens.expired))

    def _withdrawn(self) -> Bad:
        return self._bad("withdrawn", self._random.choice(self._tokens.withdrawn))

    def _used(self) -> Bad:
        return self._bad("used, with another key", self._random.choice(self._tokens.used))

    def _other_node(self) -> Bad:
        token, _ = self._random.choice(self._tokens.open)
        return self._bad("for another node", (token, f"other-{self._random.randrange(1000)}"))

    def _other_purpose(self) -> Bad:
        if self._random.random() < 0.5:
            return self._bad("for another purpose", self._random.choice(self._tokens.open), "/enroll/rekey")
        return self._bad("for another purpose", self._random.choice(self._tokens.rekey))

    def _shapeless_token(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        shapes = (
            f" {token}",
            f"{token}\n",
            token.upper(),
            token.replace(".", ""),
            token[:-1],
            f"{token}A",
            "",
            ".",
            "ы.ы",
        )
        return self._bad("shapeless token", (self._random.choice(shapes), node_id))

    def _bad_json(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        good = enrollment(token, node_id, self._csr())
        cut = self._random.randrange(len(good))
        shapes = (
            good[:cut],
            b"[" * self._random.randrange(20, 60_000),
            good.replace(b'"port": 9443', b'"port": ' + b"9" * self._random.randrange(20, 5000)),
            good.replace(b'"port": 9443', b'"port": NaN'),
            good.replace(b'"port": 9443', b'"port": 1, "port": 9443'),
            good.replace(b"192.0.2.4", b"192.0.2.4\\u0000"),
            good.replace(b"192.0.2.4", b"\\ud800"),
            good.replace(b"192.0.2.4", b"\xff\xfe"),
            good + b"}",
            self._random.randbytes(self._random.randrange(1, 2000)),
            b"",
            b"null",
            b'"text"',
            b"[]",
        )
        return Bad("bad JSON", http(self._random.choice(shapes)))

    def _bad_member(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        value = json.loads(enrollment(token, node_id, self._csr()))
        name = self._random.choice(("nodeId", "token", "csrPem", "port", "address", "machine"))
        wrong: list[Any] = [[], {}, 1.5, True, "x" * 20_000, -1, 70_000, [[]], {"a": 1}]
        value[name] = self._random.choice(wrong)
        if name in {"nodeId", "token", "csrPem"} and self._random.random() < 0.3:
            del value[name]
        if name == "machine" and isinstance(value.get(name), dict):
            value[name] = {"hostname": "x" * 300}
        return Bad("bad member", http(json.dumps(value).encode()))

    def _damaged_csr(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        csr = list(self._csr())
        for _ in range(self._random.randrange(1, 6)):
            where = self._random.randrange(30, len(csr) - 30)
            if csr[where] != "\n":
                csr[where] = self._random.choice(string.ascii_letters.replace(csr[where], ""))
        if csr == list(self._csr()):
            csr = csr[:-40]
        # One changed letter of base64 breaks the structure or the signature; "Z" in the padding would change nothing.
        return Bad("damaged CSR", http(enrollment(token, f"{node_id}-x", "".join(csr))))

    def _alien_csr(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        return Bad("CSR of another kind of key", http(enrollment(token, node_id, self._random.choice(self._alien))))

    def _bad_address(self) -> Bad:
        wrong = (
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "fe80::1%eth0",
            "a b",
            "-",
        )
        return self._bad("bad address", self._random.choice(self._tokens.open), address=self._random.choice(wrong))

    def _huge(self) -> Bad:
        if self._random.random() < 0.5:
            return Bad("huge", http(b" " * (BODY_LIMIT + self._random.randrange(1, 100_000))), ends=True)
        announced = b"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 209715200\r\n\r\n{"
        return Bad("huge", announced, ends=True)

    def _other_door(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        body = enrollment(token, node_id, self._csr())
        method = self._random.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS"))
        doors = ((method, "/enroll"), ("POST", "/"), ("POST", "/enroll/"), ("POST", "//enroll"), ("POST", "/api/nodes"))
        method, path = self._random.choice(doors)
        return Bad("other door", http(body, path, method))

    def _bad_http(self) -> Bad:
        token, node_id = self._random.choice(self._tokens.open)
        body = enrollment(token, node_id, self._csr())
        size = len(body)
        shapes = (
            f"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nContent-Length: {size + 1}\r\n\r\n".encode()
            + body,
            b"POST /enroll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nZZ\r\n",
            b"POST /enroll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            self._random.randbytes(200) + b"\r\n\r\n",
            b"POST /enroll HTTP/9.9\r\n\r\n",
            b"POST /enroll HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"x" * 20_000 + b"\r\n\r\n",
            b"\x16\x03\x01\x02\x00" + self._random.randbytes(100),
            f"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: -{size}\r\n\r\n".encode() + body,
        )
        return Bad("bad HTTP", self._random.choice(shapes), ends=True)


def _alien_csrs() -> list[str]:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pc")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    others = [
        builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256()),
        builder.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA384()),
        builder.sign(ec.generate_private_key(ec.SECP256K1()), hashes.SHA256()),
        builder.sign(ed25519.Ed25519PrivateKey.generate(), None),
        builder.sign(dsa.generate_private_key(2048), hashes.SHA256()),
    ]
    texts = [request.public_bytes(Encoding.PEM).decode() for request in others]
    return [*texts, texts[0].replace("CERTIFICATE REQUEST", "CERTIFICATE"), "-----BEGIN CERTIFICATE REQUEST-----\n"]
