"""One of each kind of operation: what is there before, how it is asked for, and what must be true at the end."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from agent.fence import Fence
from jobs.backup import making, storage
from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices
from jobs.backup.importing.content import BackupContent
from jobs.loops.orphans import stop_orphans_once
from jobs.models import Backup, BackupDestination, Operation
from jobs.requests import (
    backups,
    ca_rotation,
    downloads,
    evacuation,
    identity,
    model_runs,
    moves,
    restore,
    takeover,
    unplacing,
)
from mirbad.kernel import clock
from models_app.artifacts.download_request import DownloadRequest
from models_app.models import ModelDefinition, Placement
from nodes import fencing
from nodes.models import CaRotation, MasterIdentity, Node, NodePin
from tests.bench.hub import Repository
from tests.jobs.kills.bench import Bench
from tests.jobs.kills.names import NAMES
from tests.models_app.things import PERSON, placed


@dataclass(frozen=True)
class Scenario:
    """`launches` and `stops` are how many an undisturbed run carries out; `check` says what else is wrong."""

    name: str
    prepare: Callable[[Bench], None]
    ask: Callable[[Bench], Operation]
    launches: int = 0
    stops: int = 0
    check: Callable[[Bench, str], list[str]] = lambda _bench, _outcome: []
    engines: bool = True
    """True for a scenario about engines, in which a reboot in the middle means something."""


def _told(right: bool, words: str) -> list[str]:
    return [] if right else [words]


def _states(*wanted: tuple[str, str, str]) -> Callable[[Bench, str], list[str]]:
    """Placements as (model, node, desired) once it succeeded."""

    def check(_: Bench, outcome: str) -> list[str]:
        found = sorted(Placement.objects.values_list("model_id", "node_id_text", "desired"))
        return _told(outcome != "succeeded" or found == sorted(wanted), f"placements are {found}")

    return check


def _runs_on_a(bench: Bench) -> None:
    bench.runs("one", "a")


def _stands_on_a(_: Bench) -> None:
    placed("one", "a")


def _two_run_on_a(bench: Bench) -> None:
    bench.runs("one", "a")
    bench.runs("two", "a")


def _stray(bench: Bench) -> None:
    """An engine of a model that was taken off the node meanwhile."""
    placement = bench.runs("one", "a")
    Placement.objects.filter(pk=placement.pk).delete()
    bench.look()


def _swept(_: Bench) -> Operation:
    stop_orphans_once()
    return Operation.objects.get(kind="sweep")


def _revocable(bench: Bench) -> None:
    bench._made += 1
    node_id = f"r{bench._made}"
    bench.add(node_id)
    bench.runs("one", node_id)


def _revoke(bench: Bench) -> Operation:
    node_id = f"r{bench._made}"
    return identity.revoke(node_id, node_id, PERSON, unplace_models=True)


def _revoked(bench: Bench, outcome: str) -> list[str]:
    node = Node.objects.get(pk=f"r{bench._made}")
    machine = bench.machine(node.pk)
    if outcome != "succeeded":
        return _told(node.lifecycle == "approved" and not node.draining, f"{node.lifecycle}, draining {node.draining}")
    gone = node.lifecycle == "revoked" and not machine.engines.living
    once = len(machine.engines.stops) <= 1
    return _told(gone and once, f"{node.lifecycle}, {len(machine.engines.stops)} stops")


def _one_key(bench: Bench, _: str) -> list[str]:
    machine = bench.machine("a")
    pins = sorted(NodePin.objects.filter(node_id="a").values_list("slot", "spki_sha256"))
    right = pins == [("current", machine.identity.spki)] and machine.store.load_next() is None
    return _told(right, f"pins {[slot for slot, _ in pins]}, locked out: {bench.fleet.locked_out()}") + [
        f"{node_id} is locked out" for node_id in bench.fleet.locked_out()
    ]


def _taken(bench: Bench, outcome: str) -> list[str]:
    row = MasterIdentity.objects.get()
    held = {Fence(machine.config.state_dir, str(machine.node.uid)).held for machine in bench.machines}
    ours = fencing.present()
    return _told(not row.fenced_reason and held == {ours}, f"{outcome}: held {held}, ours {ours}, {row.fenced_reason}")


def _offered(bench: Bench) -> None:
    """A repository on the hub, and nothing of it on the node."""
    bench.hub.add(Repository(name="acme/tiny", files={"config.json": b"{}", "model.safetensors": b"weights" * 999}))
    shutil.rmtree(bench.machine("a").config.models_root / "acme--tiny", ignore_errors=True)


def _brought(bench: Bench, outcome: str) -> list[str]:
    folder = bench.machine("a").config.models_root / "acme--tiny"
    if outcome == "cancelled" and not folder.exists():
        return []
    # A wish to end may come when all is there already; what never stands there is a part.
    whole = folder.exists() and (folder / "model.safetensors").read_bytes() == b"weights" * 999
    return _told(whole, "the weights are not whole")


_BACKUPS: dict[Bench, BackupContent] = {}


def _backup_to_import(bench: Bench) -> None:
    """A backup of two models that run on a, one of them with a repository, and one that is stopped on b; all gone."""
    _offered(bench)
    source = {"kind": "huggingface", "folder": "acme--tiny", "repository": "acme/tiny"}
    if bench not in _BACKUPS:
        placed("one", "a", sources=[source])
        placed("two", "a")
        placed("three", "b")
        Placement.objects.filter(node_id_text="a").update(desired="running")
        path = bench.folder / "fleet.backup"
        making.create(path, None, PERSON)
        _BACKUPS[bench] = content.read(path, None)
        Placement.objects.all().delete()
        ModelDefinition.objects.all().delete()


def _import(bench: Bench) -> Operation:
    choices = ImportChoices()
    plan = restore.preview(_BACKUPS[bench], choices)
    return restore.request(_BACKUPS[bench], choices, plan.digest, PERSON)


def _imported(bench: Bench, outcome: str) -> list[str]:
    found = sorted(Placement.objects.values_list("model_id", "node_id_text"))
    there = _told(found == [("one", "a"), ("three", "b"), ("two", "a")], f"placements are {found}")
    once = _told(ModelDefinition.objects.count() == 3, "models are missing")
    if outcome != "succeeded":
        return there + once
    stopped = sorted(Placement.objects.filter(desired="stopped").values_list("model_id", flat=True))
    return there + once + _brought(bench, outcome) + _told(stopped == ["three"], f"{stopped} are stopped")


def _rotated(bench: Bench, outcome: str) -> list[str]:
    newest = CaRotation.objects.order_by("-started_at").first()
    stage = newest.stage if newest is not None else "none"
    out = bench.fleet.locked_out()
    return _told(outcome != "succeeded" or stage == "Closed", f"the rotation is {stage}") + [
        f"{one} is out" for one in out
    ]


def _backup_places(_: Bench) -> None:
    """An empty folder on the master, and an empty one as a destination."""
    Backup.objects.all().delete()
    BackupDestination.objects.all().delete()
    target = storage.settings().data / "backup-target"
    for folder in (target, storage.folder()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    BackupDestination.objects.create(
        name="disk", kind="folder", settings={"kind": "folder", "path": str(target)}, warn_from=clock.now()
    )


def _back_up(_: Bench) -> Operation:
    destination = BackupDestination.objects.get()
    return backups.request(PERSON, passphrase="correct horse battery staple", destination_id=destination.pk)


def _backed_up(_: Bench, outcome: str) -> list[str]:
    row = Backup.objects.get()
    folders = (storage.folder(), storage.folder().with_name("backup-target"))
    found = [[(one.name, hashlib.sha256(one.read_bytes()).hexdigest()) for one in there.iterdir()] for there in folders]
    expected = [(row.name, row.sha256)] if outcome == "succeeded" else []
    right = found == [expected, expected] and row.passphrase_sealed is None and row.outcome == outcome
    return _told(right, f"{outcome}: {found}, the row says {row.outcome} {row.sha256}")


def _is_backed_up(bench: Bench) -> None:
    _backup_places(bench)
    bench.finish(_back_up(bench).pk)


def _deleted(_: Bench, outcome: str) -> list[str]:
    rows = Backup.objects.count()
    found = [
        sorted(one.name for one in there.iterdir())
        for there in (storage.folder(), storage.folder().with_name("backup-target"))
    ]
    gone = outcome == "succeeded"
    return _told(rows == (0 if gone else 1) and all(bool(one) != gone for one in found), f"{outcome}: {found}, {rows}")


SCENARIOS = (
    Scenario(
        "launch",
        _stands_on_a,
        lambda _: model_runs.start("one", PERSON),
        launches=1,
        check=_states(("one", "a", "running")),
    ),
    Scenario(
        "restart",
        _runs_on_a,
        lambda _: model_runs.restart("one", PERSON),
        launches=1,
        stops=1,
        check=_states(("one", "a", "running")),
    ),
    Scenario(
        "stop", _runs_on_a, lambda _: model_runs.stop("one", PERSON), stops=1, check=_states(("one", "a", "stopped"))
    ),
    Scenario("sweep", _stray, _swept, stops=1),
    Scenario(
        "move, handed over",
        _runs_on_a,
        lambda _: moves.request("one", "b", (), PERSON),
        launches=1,
        stops=1,
        check=_states(("one", "b", "running")),
    ),
    Scenario(
        "move, stopped first",
        _runs_on_a,
        lambda _: moves.request("one", "b", (), PERSON, mode="stop-first"),
        launches=1,
        stops=1,
        check=_states(("one", "b", "running")),
    ),
    Scenario(
        "unplace", _runs_on_a, lambda _: unplacing.request("one", PERSON, confirm="one"), stops=1, check=_states()
    ),
    Scenario(
        "evacuate",
        _two_run_on_a,
        lambda _: evacuation.request("a", PERSON),
        launches=2,
        stops=2,
        check=_states(("one", "b", "running"), ("two", "b", "running")),
    ),
    Scenario("revoke", _revocable, _revoke, check=_revoked),
    Scenario("rotate-cert", lambda _: None, lambda _: identity.rotate("a", PERSON), check=_one_key, engines=False),
    Scenario(
        "takeover",
        lambda _: None,
        lambda _: takeover.request(takeover.PHRASE, PERSON),
        check=_taken,
        engines=False,
    ),
    Scenario(
        "download",
        _offered,
        lambda _: downloads.request("a", DownloadRequest("acme/tiny"), None, PERSON),
        check=_brought,
        engines=False,
    ),
    Scenario("ca-rotation", lambda _: None, lambda _: ca_rotation.start(PERSON), check=_rotated, engines=False),
    Scenario("backup", _backup_places, _back_up, check=_backed_up, engines=False),
    Scenario(
        "backup-delete",
        _is_backed_up,
        lambda _: backups.delete(Backup.objects.get().pk, PERSON),
        check=_deleted,
        engines=False,
    ),
    Scenario("restore", _backup_to_import, _import, launches=2, check=_imported),
)
assert tuple(scenario.name for scenario in SCENARIOS) == NAMES
