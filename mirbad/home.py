"""The overview: serving models, problems, and activity. It is above all apps and may read them all."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from jobs.backup import freshness, installation
from jobs.loops import configured_takeover
from jobs.pages.contexts import backups
from jobs.pages.contexts import operations as jobs
from jobs.pages.contexts.rows import OperationRow
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.roles import VIEWER
from mirbad.tasking import heartbeat
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from mirbad.web.parts import Attention, Tone
from models_app import windows
from models_app.pages.contexts import models
from models_app.pages.contexts.models import ModelRow
from nodes.models import MasterIdentity
from nodes.pages.contexts import nodes
from nodes.pages.contexts.nodes import NodeCard
from nodes.pages.contexts.scopes import scopes_of

RECENT = 8
_NEEDED = ("enroll", "watcher", "worker", "beat")
_PROCESS_WORDS = {
    "enroll": "The enroll listener sends no heartbeat. No machine can join.",
    "watcher": "The watcher sends no heartbeat. States of nodes and models may be stale.",
    "worker": "No worker sends a heartbeat. Starts and stops wait.",
    "beat": "The scheduler sends no heartbeat. Interrupted operations are not resumed.",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure at the top."""

    what: str
    icon: str
    figure: str
    of: str
    note: str
    tone: Tone
    url: str


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node with the models that are placed on it."""

    card: NodeCard
    models: tuple[ModelRow, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The view-model of the overview."""

    tiles: tuple[Tile, ...]
    attention: tuple[Attention, ...]
    happening: tuple[OperationRow, ...]
    fleet: tuple[FleetNode, ...]
    models: tuple[ModelRow, ...]
    recent: tuple[OperationRow, ...]
    scopes: tuple[tuple[str, str], ...] = ()
    last_backup: dict[str, Any] | None = None


@require_GET
@require_role(VIEWER)
def overview(request: HttpRequest) -> HttpResponse:
    """Show the fleet at a glance, or with ``?node=`` one node of it and its history."""
    node_id = request.GET.get("node", "")[:40]
    overview = read(node_id)
    context = {
        "overview": overview,
        "node_id": node_id,
        "scopes": overview.scopes,
        "path": reverse("home"),
        "history_url": reverse("nodes:history", args=[node_id]) if node_id and overview.fleet else "",
    }
    return page_or_fragment(request, "home.html", "_home.html", context)


def read(only: str = "") -> Overview:
    """Return the whole overview, in a number of queries that does not grow with the fleet."""
    cards = nodes.fleet()
    choice = scopes_of((card.id, card.name) for card in cards)
    rows = models.models()
    happening = jobs.unfinished()
    recent = jobs.recent(RECENT)
    if only:
        cards = tuple(card for card in cards if card.id == only)
        rows = tuple(model for model in rows if any(place == only for place, _ in model.nodes))
        happening = tuple(one for one in happening if one.node_id == only)
        recent = tuple(one for one in recent if one.node_id == only)
    failures = jobs.last_failures(tuple(model.id for model in rows))
    attention = (*_of_master(), *_of_backups(), *_of_nodes(cards), *_of_models(rows, failures))
    by_node: dict[str, list[ModelRow]] = {}
    for model in rows:
        for node_id, _ in model.nodes:
            by_node.setdefault(node_id, []).append(models.on_node(model, node_id))
    return Overview(
        tiles=_tiles(cards, rows, happening, attention),
        attention=attention,
        happening=happening,
        fleet=tuple(FleetNode(card, tuple(by_node.get(card.id, ()))) for card in cards),
        models=tuple(sorted(rows, key=lambda model: (not model.serves, not model.desired_running, model.name))),
        recent=recent,
        scopes=choice,
        last_backup=backups.last_line(),
    )


def _tiles(
    cards: tuple[NodeCard, ...],
    rows: tuple[ModelRow, ...],
    happening: tuple[OperationRow, ...],
    attention: tuple[Attention, ...],
) -> tuple[Tile, ...]:
    return (
        _models_tile(rows),
        _nodes_tile(cards),
        Tile(
            "In progress",
            "activity",
            str(len(happening)),
            "",
            parts.plural(len(happening), "operation") if happening else "no starts or stops",
            "busy" if happening else "idle",
            reverse("jobs:list") + "?state=open",
        ),
        Tile(
            "Needs attention",
            "triangle-alert" if attention else "shield-check",
            str(len(attention)),
            "",
            "see below" if attention else "all is well",
            "bad" if any(item.tone == "bad" for item in attention) else "warn" if attention else "ok",
            "#attention",
        ),
    )


def _models_tile(rows: tuple[ModelRow, ...]) -> Tile:
    expected = sum(model.desired_running for model in rows)
    missing = max(0, expected - sum(model.serves and model.desired_running for model in rows))
    return Tile(
        "Models running",
        "boxes",
        str(sum(model.serves for model in rows)),
        f"of {len(rows)}",
        _missing_words(missing, len(rows)),
        "warn" if missing else "ok" if rows else "idle",
        reverse("models:list"),
    )


def _nodes_tile(cards: tuple[NodeCard, ...]) -> Tile:
    waiting = sum(card.pending for card in cards)
    gpus = sum(len(card.gpus) for card in cards)
    return Tile(
        "Nodes online",
        "server",
        str(sum(card.serving for card in cards)),
        f"of {len(cards)}",
        parts.plural(waiting, "node waits", "nodes wait") + " for approval"
        if waiting
        else (parts.plural(gpus, "GPU") if gpus else "no GPU reported"),
        "warn" if waiting else "idle",
        reverse("nodes:list"),
    )


def _missing_words(missing: int, models: int) -> str:
    if not models:
        return "none defined yet"
    return f"{missing} down" if missing else "all expected models are up"


def _of_master() -> Iterable[Attention]:
    identity = MasterIdentity.objects.only("fenced_reason", "stood_down_at").first()
    if identity is not None and identity.fenced_reason:
        how = "another master took over" if identity.stood_down_at is None else "it stands down"
        title = f"This master commands no nodes: {how}"
        yield Attention("bad", "shield-alert", title, identity.fenced_reason, reverse("nodes:list"), "Open nodes")
    if windows.is_recovering():
        detail = (
            "MIRBAD_RECOVERY_MODE, or the file recovery in the data folder, asks for the recovery mode. /v1 is closed "
            "already, and at its next start this master is in recovery mode. Remove it."
        )
        yield Attention("bad", "ban", "/v1 is paused", detail, reverse("models:list"), "Open models")
    if (recovery := installation.installed()) is not None and configured_takeover.is_coming():
        title = f"This master was recovered from {recovery.backup}"
        detail = "It takes the nodes over by itself. Engines keep running."
        yield Attention("busy", "hourglass", title, detail, reverse("jobs:backup-recovered"), "Show progress")
    try:
        alive = heartbeat.alive()
    except Unavailable as error:
        title = "The broker does not respond"
        detail = f"{error.detail} Live updates are off, and new operations wait until it is back."
        yield Attention("bad", "unplug", title, detail, reverse("jobs:list"), "Open operations")
        return
    for name in _NEEDED:
        if name not in alive:
            yield Attention(
                "bad", "power", f"Process {name} is down", _PROCESS_WORDS[name], reverse("jobs:list"), "Open operations"
            )


def _of_backups() -> Iterable[Attention]:
    for age in freshness.ages():
        url, since = reverse("jobs:backups"), age.last_good_at
        if age.is_stale:
            title = f"Backup at {age.destination.name} is too old"
            yield Attention("bad", "history", title, age.sentence(), url, "Open backups", since)
        elif age.failed and age.last is not None:
            title, detail = f"Last backup to {age.destination.name} failed", str(age.last.error.get("detail", ""))
            yield Attention("warn", "history", title, detail, url, "Open backups", age.last.finished_at)


def _of_nodes(cards: tuple[NodeCard, ...]) -> Iterable[Attention]:
    for card in cards:
        url = reverse("nodes:detail", args=[card.id])
        if card.pending:
            detail = "Compare its fingerprint with the one printed on the machine."
            yield Attention("warn", "fingerprint", f"{card.name} waits for approval", detail, url, "Review")
        elif not card.serving:
            detail = " ".join(card.reasons) or "The master cannot reach the node."
            title = f"{card.name} is {card.badge.label.lower()}"
            yield Attention("bad", card.badge.icon, title, detail, url, "Open node", card.last_seen_at)
        else:
            for reason in card.reasons:
                yield Attention("warn", "triangle-alert", f"{card.name} is degraded", reason, url, "Open node")
        if card.certificate_soon and not card.revoked:
            title = f"Certificate of {card.name} expires soon"
            detail = "It renews automatically while the node is online."
            certificates = reverse("nodes:tab", args=[card.id, "certificates"])
            yield Attention("warn", "shield-alert", title, detail, certificates, "Open certificate")


def _of_models(rows: tuple[ModelRow, ...], failures: dict[str, OperationRow]) -> Iterable[Attention]:
    for model in rows:
        url = reverse("models:detail", args=[model.id])
        failure = failures.get(model.id)
        if model.state in ("failed", "unhealthy"):
            detail = " ".join(model.reasons) or (failure.error if failure else "")
            title = f"{model.name} {'failed' if model.state == 'failed' else 'is unhealthy'}"
            yield Attention(model.badge.tone, model.badge.icon, title, detail, url, "Open model", model.observed_at)
        elif model.state == "unknown" and model.desired_running:
            title = f"{model.name}: no status"
            yield Attention("warn", "circle-help", title, " ".join(model.reasons), url, "Open model", model.observed_at)
        elif failure is not None and not model.serves:
            title = f"{failure.title} of {model.name} failed"
            yield Attention("bad", "circle-x", title, failure.error, url, "Open model", failure.finished_at)
        if model.restart_needed:
            detail = "The model's settings changed since it started."
            yield Attention(
                "warn", "rotate-cw", f"{model.name} needs a restart to apply changes", detail, url, "Open model"
            )
