"""``python -m tests.bench.simfleet.rows``: make a master's rows for a simulated fleet, and each agent's state folder.

Nodes are stored as a join and an approval would leave them, with certificates of the master's own CA.
"""

import json
import sys
from pathlib import Path
from typing import Any

import django


def _install(node: Any, folder: Path, *, issuer: Any, bundle: tuple[str, ...], master_spki: str) -> tuple[Path, str]:
    """Write the identity of `node` as a join would leave it. Return its state folder and its key's fingerprint."""
    from cryptography import x509

    from agent.common import keys
    from agent.identity import Identity, IdentityStore, fleet_id
    from agent.wire.enroll import MasterSpki
    from mirbad.kernel import clock
    from nodes.pki.certs import issue_node, to_pem

    key = keys.new_key()
    cert = issue_node(issuer, key.public_key(), str(node.uid), clock.now())
    state = folder / node.pk
    state.mkdir(parents=True)
    IdentityStore(state).install(
        Identity(
            node_id=node.pk,
            node_uid=str(node.uid),
            fleet=fleet_id(x509.load_pem_x509_certificate(bundle[0].encode())),
            master=MasterSpki(current=master_spki),
            key_pem=keys.key_to_pem(key),
            chain=(to_pem(cert),),
            ca_bundle=bundle,
        )
    )
    return state, keys.spki_of(key.public_key())


def _make(count: int, models: int, folder: Path) -> list[Any]:
    from mirbad.kernel import clock
    from models_app.models import ModelDefinition, Placement
    from nodes.models import Node, NodePin
    from nodes.pki import authority, store
    from tests.bench.simfleet.plan import PORT, Member, address_of

    master, now = authority.ensure(), clock.now()
    issuer, bundle = store.issuer(), store.trust().bundle
    nodes, pins, members = [], [], []
    definitions, placements = [], []
    for number in range(count):
        node = Node(
            id=f"sim-{number:04}",
            address=address_of(number),
            port=PORT,
            lifecycle="approved",
            # A loopback address is let through for the master's own machine only, and that is where all of these are.
            is_bootstrap=True,
            machine={"os": "Debian 12", "arch": "x86_64", "hostname": f"sim-{number:04}"},
            enrolled_at=now,
            approved_at=now,
        )
        instance, model = "", ""
        if number < models:
            definition = ModelDefinition(id=f"model-{number:04}", runtime="sim", delivery="process")
            placement = Placement(model=definition, node_id_text=node.pk, desired="running")
            definitions.append(definition)
            placements.append(placement)
            instance, model = str(placement.pk), definition.pk
        state, spki = _install(node, folder, issuer=issuer, bundle=bundle, master_spki=master.client_spki)
        nodes.append(node)
        pins.append(NodePin(node=node, slot=NodePin.CURRENT, spki_sha256=spki))
        members.append(Member(node.pk, node.address, PORT, str(state), instance, model))
    Node.objects.bulk_create(nodes)
    NodePin.objects.bulk_create(pins)
    ModelDefinition.objects.bulk_create(definitions)
    Placement.objects.bulk_create(placements)
    return members


def main(count: int, models: int, folder: Path) -> None:
    """Migrate, make everything, and print an admin token as JSON."""
    django.setup()
    from django.core.management import call_command

    from mirbad.accounts import tokens
    from mirbad.kernel.actor import CONFIG
    from tests.bench.simfleet.plan import write

    folder.mkdir(parents=True, exist_ok=True)
    call_command("migrate", verbosity=0)
    write(folder / "plan.json", _make(count, models, folder / "agents"))
    _, secret = tokens.create("figures", "operator", actor=CONFIG)
    print(json.dumps({"token": secret}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
