"""The overview: what serves, what is wrong, what is happening. It stands above all apps and may read them all."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from jobs.pages import contexts as jobs
from jobs.pages.contexts import OperationRow
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.roles import VIEWER
from mirbad.tasking import heartbeat
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from mirbad.web.parts import Attention, Tone
from models_app.pages import contexts as models
from models_app.pages.contexts import ModelRow
from nodes.models import MasterIdentity
from nodes.pages import contexts as nodes
from nodes.pages.contexts import NodeCard
from nodes.pages.scopes import scopes_of

RECENT = 8
_NEEDED = ("enroll", "watcher", "worker", "beat")
_PROCESS_WORDS = {
    "enroll": "No machine can join: the enroll listener gives no sign of life.",
    "watcher": "What pages say of nodes and models may be old: the watcher gives no sign of life.",
    "worker": "Starts and stops wait: no worker gives a sign of life.",
    "beat": "Interrupted operations are not taken up again: the clock of the workers gives no sign of life.",
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


@require_GET
@require_role(VIEWER)
def overview(request: HttpRequest) -> HttpResponse:
    """The fleet at a glance, or with ``?node=`` one node of it and its history."""
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
    """Everything the overview shows, in a number of queries that does not grow with the fleet."""
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
    attention = (*_of_master(), *_of_nodes(cards), *_of_models(rows, failures))
    by_node: dict[str, list[ModelRow]] = {}
    for model in rows:
        for node_id, _ in model.nodes:
            by_node.setdefault(node_id, []).append(models.on_node(model, node_id))
    return Overview(
        tiles=_tiles(cards, rows, happening, attention),
        attention=attention,
        happening=happening,
        fleet=tuple(FleetNode(card, tuple(by_node.get(card.id, ()))) for card in cards),
        models=tuple(sorted(rows, key=lambda model: (not model.serves, not model.wanted_running, model.name))),
        recent=recent,
        scopes=choice,
    )


def _tiles(
    cards: tuple[NodeCard, ...],
    rows: tuple[ModelRow, ...],
    happening: tuple[OperationRow, ...],
    attention: tuple[Attention, ...],
) -> tuple[Tile, ...]:
    serving = sum(model.serves for model in rows)
    wanted = sum(model.wanted_running for model in rows)
    online = sum(card.serving for card in cards)
    waiting = sum(card.pending for card in cards)
    gpus = sum(len(card.gpus) for card in cards)
    missing = max(0, wanted - sum(model.serves and model.wanted_running for model in rows))
    return (
        Tile(
            "Models that serve",
            "boxes",
            str(serving),
            f"of {len(rows)}",
            _missing_words(missing, len(rows)),
            "warn" if missing else "ok" if rows else "idle",
            reverse("models:list"),
        ),
        Tile(
            "Nodes online",
            "server",
            str(online),
            f"of {len(cards)}",
            parts.plural(waiting, "node waits", "nodes wait") + " for approval"
            if waiting
            else (parts.plural(gpus, "GPU") if gpus else "no GPU reported"),
            "warn" if waiting else "idle",
            reverse("nodes:list"),
        ),
        Tile(
            "In progress",
            "activity",
            str(len(happening)),
            "",
            parts.plural(len(happening), "operation") if happening else "nothing is starting or stopping",
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


def _missing_words(missing: int, models: int) -> str:
    if not models:
        return "none is defined yet"
    return f"{missing} should run and {'does' if missing == 1 else 'do'} not" if missing else "all that should run do"


def _of_master() -> Iterable[Attention]:
    identity = MasterIdentity.objects.only("fenced_reason").first()
    if identity is not None and identity.fenced_reason:
        title = "This master commands nothing: another one took over"
        yield Attention("bad", "shield-alert", title, identity.fenced_reason, reverse("nodes:list"), "Nodes")
    try:
        alive = heartbeat.alive()
    except Unavailable as error:
        title = "The broker does not answer"
        detail = f"{error.detail} Pages are not live and new operations wait until it is back."
        yield Attention("bad", "unplug", title, detail, reverse("jobs:list"), "Operations")
        return
    for name in _NEEDED:
        if name not in alive:
            yield Attention(
                "bad", "power", f"The process {name} is down", _PROCESS_WORDS[name], reverse("jobs:list"), "Operations"
            )


def _of_nodes(cards: tuple[NodeCard, ...]) -> Iterable[Attention]:
    for card in cards:
        url = reverse("nodes:detail", args=[card.id])
        if card.pending:
            detail = "Compare its key fingerprint with the one that the machine printed."
            yield Attention("warn", "fingerprint", f"{card.name} waits for approval", detail, url, "Review")
        elif not card.serving:
            detail = " ".join(card.reasons) or "The master cannot reach it."
            title = f"{card.name} is {card.badge.label.lower()}"
            yield Attention("bad", card.badge.icon, title, detail, url, "Node", card.last_seen_at)
        else:
            for reason in card.reasons:
                yield Attention("warn", "triangle-alert", f"{card.name} is degraded", reason, url, "Node")
        if card.certificate_soon and not card.revoked:
            title = f"The certificate of {card.name} ends soon"
            detail = "It renews by itself while the node is online."
            certificates = reverse("nodes:tab", args=[card.id, "certificates"])
            yield Attention("warn", "shield-alert", title, detail, certificates, "Certificate")


def _of_models(rows: tuple[ModelRow, ...], failures: dict[str, OperationRow]) -> Iterable[Attention]:
    for model in rows:
        url = reverse("models:detail", args=[model.id])
        failure = failures.get(model.id)
        if model.state in ("failed", "unhealthy"):
            detail = " ".join(model.reasons) or (failure.error if failure else "")
            title = f"{model.name} {'failed' if model.state == 'failed' else 'is unhealthy'}"
            yield Attention(model.badge.tone, model.badge.icon, title, detail, url, "Model", model.observed_at)
        elif model.state == "unknown" and model.wanted_running:
            title = f"{model.name} should run and is not reported"
            yield Attention("warn", "circle-help", title, " ".join(model.reasons), url, "Model", model.observed_at)
        elif failure is not None and not model.serves:
            title = f"{failure.title} of {model.name} failed"
            yield Attention("bad", "circle-x", title, failure.error, url, "Model", failure.finished_at)
        if model.restart_needed:
            detail = "Its settings changed since it started."
            yield Attention("warn", "rotate-cw", f"{model.name} needs a restart to apply changes", detail, url, "Model")
