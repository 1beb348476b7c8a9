"""A master with everything that a backup carries, and secrets that can be found again."""

from django.contrib.auth.models import User

from jobs.backup import container, records, verification
from mirbad.accounts import tokens
from mirbad.accounts.roles import OPERATOR, ensure_groups
from mirbad.kernel import clock
from models_app import keys
from models_app.models import Placement
from nodes.models import Gpu, Node, NodePin, RevokedKey
from nodes.pki import authority
from tests.models_app.things import GIB, PERSON, placed
from tests.models_app.things import node as made_node

PASSPHRASE = "correct horse battery staple"
CANARY = "canary-7f3e9a1c"
"""The value of a secret variable of each model."""


def fill(models: int = 3) -> dict[str, str]:
    """Make a node with two cards, models on it, keys and people; return the secrets in clear, by what they are of."""
    authority.ensure()
    node = made_node(
        "pc-1", address="192.0.2.7", labels={"room": "attic"},
        default_image="vllm/vllm-openai", default_image_digest="sha256:" + "d" * 64, memory_reserve_bytes=GIB,
        display_name="The PC", machine={"hostname": "pc"}, enrolled_at=clock.now(), approved_at=clock.now(),
    )  # fmt: skip
    for index in range(2):
        Gpu.objects.create(
            node=node, uuid=f"GPU-{index}", index=index, name="RTX 4090", memory_bytes=24 * GIB, reserve_bytes=GIB
        )
    NodePin.objects.create(node=node, slot=NodePin.CURRENT, spki_sha256="a" * 64, cert_pem="PEM")
    RevokedKey.objects.create(spki_sha256="b" * 64, node_id_text="gone")
    Node.objects.create(pk="gone", address="192.0.2.8", lifecycle="revoked", revoked_at=clock.now())
    for number in range(models):
        placed(f"m{number}", "pc-1", tags=["chat"], secretEnv={"HF_TOKEN": f"{CANARY}-{number}"})
    Placement.objects.filter(model_id="m0").update(desired="running", gpu_uuids=["GPU-0"], start_seconds=12.5)
    person = User.objects.create_user("ada", password="a password of ada")
    person.groups.add(ensure_groups()[OPERATOR])
    _, key = keys.create("tools", actor=PERSON)
    token = tokens.create("script", OPERATOR, actor=PERSON)
    return {"key": key, "token": token if isinstance(token, str) else token[1]}


def read(path, passphrase=PASSPHRASE) -> dict[str, list[records.Record]]:
    """Return the records of a backup by kind."""
    found: dict[str, list[records.Record]] = {}
    with container.opened(path) as backup:
        sealed = verification.secrets(backup, passphrase) if passphrase else ()
        for record in (*verification.configuration(backup), *sealed):
            found.setdefault(record.kind, []).append(record)
    return found
