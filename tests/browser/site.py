"""A whole web process over a seeded database, for browsers: ``python -m tests.browser.site serve PORT|do VERB``.

Its environment comes from the fixture: a data folder and a broker of its own.
"""

import os
import sys
import threading

import django

from tests.waiting import pause

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
django.setup()

PASSWORD = "correct horse battery"


def prepare(kind: str) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from mirbad.accounts.roles import ensure_groups
    from tests.pages import octo, seed

    call_command("migrate", verbosity=0)
    groups = ensure_groups()
    for name in ("owner", "viewer"):
        user = User.objects.create_user(name, password=PASSWORD, is_staff=name == "owner", is_superuser=name == "owner")
        user.groups.add(groups[name])
    if kind in ("fleet", "fenced"):
        seed.fleet()
    if kind == "fenced":
        _fence()
    if kind == "cards":
        from tests.pages import cards

        seed.fleet()
        cards.octo()
    if kind == "backup":
        _back_up()
    if kind == "octo":
        octo.fleet()
    if kind == "backups":
        from tests.pages import backed_up

        backed_up.rows()
    if kind == "trouble":
        from tests.pages import trouble

        seed.fleet()
        trouble.conflict(trouble.signed_log())
        trouble.engine_without_a_record("atlas")


def _back_up() -> None:
    """A backup of the fleet in the data folder; then one node is another machine, and models differ or are gone."""
    from jobs.backup import making
    from mirbad.kernel.actor import CONFIG
    from mirbad.kernel.conf import settings
    from mirbad.kernel.ids import new_uid
    from models_app import keys
    from models_app.models import ApiKey, Hold, ModelDefinition, Placement
    from nodes.models import Node
    from nodes.pki import authority
    from tests.pages import seed

    seed.fleet()
    authority.ensure()
    keys.create("continuous integration", actor=CONFIG)
    making.create(settings().data / "fleet.backup", "correct horse battery staple", CONFIG)
    ApiKey.objects.all().delete()
    Hold.objects.all().delete()
    Node.objects.filter(pk="borealis").update(uid=new_uid())
    Node.objects.filter(pk="atlas").update(labels={"rack": "7"}, memory_reserve_bytes=2**30)
    ModelDefinition.objects.filter(pk="qwen3-14b").update(tags=["other"], display_name="Mine")
    gone = ModelDefinition.objects.exclude(pk__in=("qwen3-14b", "phi-4"))
    Placement.objects.filter(model__in=gone).delete()
    gone.delete()


def _fence() -> None:
    """A copy of a master after its takeover: refused by one node, and another came back under the other master."""
    from nodes import fencing
    from nodes.models import MasterIdentity, Node
    from nodes.pki import authority

    authority.ensure()
    taken = "op-01a228098e2f0001b8393116"
    MasterIdentity.objects.update(epoch=5, takeover_id=taken)
    Node.objects.filter(pk="borealis").update(
        reachability="fenced",
        reachability_reason=f"It obeys another master (epoch 7) since takeover {taken}.",
        held_epoch=7,
        takeover_id=taken,
        takeover_epoch=5,
    )
    fencing.fence("Node atlas obeys another master (stale_master). A takeover is needed; stop the other master first.")


def serve(port: int) -> None:
    import uvicorn

    uvicorn.run(
        "mirbad.asgi:application", host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1
    )


def signs_of_life() -> None:
    """Stand in for the processes that these tests do not run: heartbeats, and nodes that are seen."""
    from mirbad.tasking import heartbeat

    threading.Thread(target=_nodes_are_seen, daemon=True).start()

    for name in ("enroll", "watcher", "worker", "beat", "up"):
        heartbeat.start(name)


def _nodes_are_seen() -> None:
    from mirbad.kernel import clock
    from mirbad.live import invalidations
    from nodes.models import Node

    while True:
        Node.objects.filter(reachability="online").update(last_seen_at=clock.now(), status_at=clock.now())
        for node_id in ("atlas", "octo"):
            invalidations.changed("nodes", node_id)
        pause(4)


def launch_moves_on() -> None:
    from jobs.models import Operation, OperationEvent
    from mirbad.kernel import clock
    from mirbad.live import invalidations

    operation = Operation.objects.get(model_id_text="qwen3-coder", finished_at=None)
    operation.progress = {"text": "Loading weights, shard 5 of 6", "doneBytes": 24 * 2**30, "totalBytes": 28 * 2**30}
    operation.save(update_fields=["progress"])
    OperationEvent.objects.create(operation=operation, time=clock.now(), stage="waiting", text="Shard five.")
    invalidations.changed("operations", operation.pk)
    invalidations.flush()


def launch_ends() -> None:
    from jobs.models import Operation
    from mirbad.kernel import clock
    from mirbad.live import invalidations
    from tests.pages import seed

    now = clock.now()
    Operation.objects.filter(model_id_text="qwen3-coder", finished_at=None).update(
        stage="waiting", outcome="succeeded", finished_at=now, progress={}
    )
    seed.seen("qwen3-coder", "ready")
    invalidations.changed("operations", "")
    invalidations.changed("models", "qwen3-coder")
    invalidations.flush()


def ember_enrolls() -> None:
    from mirbad.kernel import clock
    from mirbad.live import invalidations
    from nodes.models import JoinToken
    from tests.pages import seed

    JoinToken.objects.filter(node_id_text="forge").update(used_at=clock.now())
    seed.node("forge", "", lifecycle="pending", reachability="unknown")
    invalidations.changed("nodes", "forge")
    invalidations.flush()


def moves() -> None:
    from tests.pages import moving

    moving.moves()


def spread() -> None:
    from tests.pages import spread as several

    several.models()


VERBS = {
    "spread": spread,
    "moves": moves,
    "launch-moves-on": launch_moves_on,
    "launch-ends": launch_ends,
    "forge-enrolls": ember_enrolls,
}

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        prepare(sys.argv[3])
        if sys.argv[3] != "empty":
            signs_of_life()
        serve(int(sys.argv[2]))
    else:
        VERBS[sys.argv[2]]()
