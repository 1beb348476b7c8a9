"""Keys and certificates for a run, as files: a CA, a node's server side, a master's client side."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent.wire.base import node_server_name
from nodes.pki import certs

UID = "6f1f0c1e-52a1-4b8e-9df4-0d6ef2a0a001"
NAME = node_server_name(UID)
SECRET = "ssk_" + "a" * 43


def write(folder: Path) -> Path:
    """Write the files into `folder` and return it."""
    now = datetime.now(UTC)
    ca_key, node_key, master_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = certs.make_ca(ca_key, now)
    issuer = certs.Issuer(ca, ca_key)
    found = {
        "ca.pem": certs.to_pem(ca),
        "node.pem": certs.to_pem(certs.issue_node(issuer, node_key.public_key(), UID, now)),
        "master.pem": certs.to_pem(certs.issue_master_client(issuer, master_key.public_key(), now)),
    }
    for name, text in found.items():
        (folder / name).write_text(text)
    for name, key in (("node.key", node_key), ("master.key", master_key)):
        (folder / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder
