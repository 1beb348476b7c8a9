"""The texts of every page, as reviewed: a text that changes shows in `texts/` and is read there once more.

After a change of texts, renew the stored ones and read the difference before it is committed:

    MIRBAD_TEST_RENEW_TEXTS=1 .venv/bin/python -m pytest tests/pages/test_texts.py && git diff tests/pages/texts
"""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from difflib import unified_diff
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
import time_machine
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse

from jobs.models import Operation
from mirbad.accounts import tokens
from mirbad.kernel import ids
from mirbad.kernel.conf import settings
from mirbad.tasking import heartbeat
from models_app.models import ApiKey
from nodes import fencing
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.pages import backed_up, moving, octo, seed, spread
from tests.pages.test_every_page import FOR_OPERATORS, PAGES
from tests.pages.wording import main_part, texts

pytestmark = [pytest.mark.app, pytest.mark.django_db]

STORED = Path(__file__).with_name("texts")
RENEW = "MIRBAD_TEST_RENEW_TEXTS"
HOW = f"Read the difference. If it is meant: {RENEW}=1 .venv/bin/python -m pytest tests/pages/test_texts.py"
NOON = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
HX = {"HX-Request": "true"}
_NUMBERS = count(1)  # of ids, none of which returns in a later test: reports are kept in memory by them

Page = tuple[str, str, dict[str, str] | None]
"""Its name, its address, and the values of the form that is posted there (none: it is fetched)."""


@pytest.fixture(autouse=True)
def _same_every_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No broker, and a clock that moves with each new id alone; ids sort by creation: no two rows are of one moment."""
    monkeypatch.setattr(heartbeat, "settings", lambda: settings().model_copy(update={"redis_url": ""}))
    with time_machine.travel(NOON, tick=False) as clock:

        def number() -> int:
            clock.shift(0.001)
            return next(_NUMBERS)

        monkeypatch.setattr(ids, "secrets", SimpleNamespace(token_hex=lambda size: f"{number():0{2 * size}x}"))
        monkeypatch.setattr(ids, "uuid", SimpleNamespace(uuid4=lambda: UUID(int=number())))
        yield


def _named(*names: tuple[str, list[str]]) -> list[Page]:
    return [("-".join([name.replace(":", "-"), *args]), reverse(name, args=args), None) for name, args in names]


def _fleet() -> list[Page]:
    seed.fleet()
    seed.model("large", "atlas", name="Large")
    tokens.create("ci", "operator", actor=seed.ADMIN)
    key = ApiKey.objects.get(name="open-webui")
    pages = _named(
        *PAGES, *FOR_OPERATORS, ("accounts:tokens", []), ("accounts:token-new", []), ("jobs:ca-replace", []),
        ("jobs:model-unplace", ["phi-4"]), ("models:replica-add", ["phi-4"]),
        ("jobs:node-images", ["atlas"]), ("jobs:ca-of-node", ["atlas"]), ("jobs:ca-card", []), ("monitoring", []),
        ("nodes:join-progress", ["ember"]),
    )  # fmt: skip
    pages.append(("models-key-edit", reverse("models:key-edit", args=[key.pk]), None))  # its number differs by database
    for operation in Operation.objects.all():
        name = f"operation-{operation.kind}-{operation.outcome}-{operation.model_id_text or operation.node_id_text}"
        pages.append((name, reverse("jobs:detail", args=[operation.pk]), None))
    return pages + _refusals()


def _refusals() -> list[Page]:
    return [
        ("refused-move-to-draining", "/models/qwen3-14b/move", {"node": "cirrus"}),
        ("refused-unplace-without-id", "/models/qwen3-14b/unplace", {"confirm": ""}),
        ("refused-revoke-without-id", "/nodes/-/revoke/atlas", {"confirm": ""}),
        ("refused-delete-of-running", "/models/qwen3-14b/delete", {}),
        ("refused-start-on-offline", "/models/gemma-3-27b/start", {}),
        ("refused-start-unplaced", "/models/draft-idea/start", {}),
        ("refused-node-id", "/nodes/-/add", {"node_id": "No Id!"}),
        ("refused-key-without-name", "/keys/new", {"name": ""}),
        ("refused-token-without-name", "/tokens/new", {"name": "", "role": "viewer"}),
        ("refused-model", "/models/-/new", {"id": "No Id!", "runtime": "vllm", "start_timeout_seconds": "no"}),
        ("refused-download", "/downloads/new", {"node": "atlas", "repository": "no"}),
        ("refused-takeover", "/fencing/takeover", {"confirm": "no"}),
        ("refused-import", "/backup/import", {"passphrase": ""}),
        ("import-gone", "/backup/import/none", None),
        ("refused-settings", "/nodes/atlas/save", {"display_name": "x" * 300}),
        ("nothing-there", "/nodes/nobody", None),
    ]


def _empty() -> list[Page]:
    names = (
        "home", "dashboard", "nodes:list", "models:list", "models:keys", "models:usage", "models:folders",
        "models:catalog", "models:playground", "models:new", "jobs:list", "jobs:activity", "jobs:downloads",
        "jobs:download-new", "jobs:ca", "jobs:backups", "jobs:backup-import", "audit:list", "accounts:tokens",
        "nodes:add",
    )  # fmt: skip
    return _named(*((name, []) for name in names))


def _moves() -> list[Page]:
    seed.node("atlas", "Atlas", gpus=2)
    seed.node("local", "", is_bootstrap=True)
    seed.node("borealis", "Borealis", gpus=1, reachability="offline")
    moving.moves()
    models = ("smollm2-1.7b", "stranded", "refused", "settled")
    return _named(
        *(("jobs:model-move", [model]) for model in models), ("home", []), ("jobs:activity", []), ("jobs:list", [])
    )


def _replicas() -> list[Page]:
    spread.models()
    models = ("chat-small", "chat-huge", "chat-alone")
    return _named(
        *(("models:detail", [model]) for model in models),
        *(("models:replica-add", [model]) for model in models),
        ("models:list", []),
    )


def _memory() -> list[Page]:
    octo.fleet()
    authority.ensure()
    form = {"id": "another", "runtime": "vllm", "delivery": "container", "folder": "qwen3-14b"}
    gpu = seed.gpu_uuid("octo", 0)
    return [
        ("fit", "/models/-/fit", form | {"node": "octo", "gpu_uuids": seed.gpu_uuid("octo", 4)}),
        ("fit-not", "/models/-/fit", form | {"node": "octo", "gpu_uuids": gpu}),
        ("fit-nowhere", "/models/-/fit", form | {"choose": "1", "context_length": "40960", "gpu_budget_gib": "300"}),
        ("fit-chosen", "/models/-/fit", form | {"choose": "1"}),
        ("fit-without-weights", "/models/-/fit", form | {"node": "octo", "folder": ""}),
        *_named(("models:edit", ["qwen3-14b"]), ("models:new", []), ("jobs:model-start-ask", ["qwen3-full"])),
    ]


def _fenced() -> list[Page]:
    seed.node("atlas", "Atlas")
    authority.ensure()
    taken = "op-01a228098e2f0001b8393116"
    MasterIdentity.objects.update(epoch=5, takeover_id=taken)
    Node.objects.filter(pk="atlas").update(
        reachability="fenced", held_epoch=7, takeover_id=taken, takeover_epoch=5,
        reachability_reason=f"Another master (epoch 7) commands it since takeover {taken}.",
    )  # fmt: skip
    fencing.fence("Node atlas obeys another master (stale_master).")
    pages = _named(("jobs:fencing-banner", []), ("jobs:takeover", []), ("jobs:takeover-continue", ["atlas"]))
    return [*pages, ("shell", "/nodes", None)]


def _backups() -> list[Page]:
    """Numbers of rows differ by database, so pages are named by what they show."""
    ids_by_kind = backed_up.rows()
    new = [("jobs:backup-destination-new", [kind]) for kind in ids_by_kind]
    pages = _named(("jobs:backups", []), ("jobs:backup-new", []), ("home", []), *new)
    smb = reverse("jobs:backup-destination", args=[ids_by_kind["smb"]])
    pages.append(("destination-edit", smb, None))
    pages.append(("refused-backup-without-passphrase", "/backup/new", {"with_secrets": "on"}))
    pages.append(("refused-backup-typed-differently", "/backup/new", {"passphrase": "one", "again": "another"}))
    folder = reverse("jobs:backup-destination-new", args=["folder"])
    pages.append(("refused-destination", folder, {"name": "x", "path": "relative", "schedule": "never"}))
    return pages


STATES: dict[str, Callable[[], list[Page]]] = {
    "fleet": _fleet,
    "empty": _empty,
    "moves": _moves,
    "replicas": _replicas,
    "memory": _memory,
    "fenced": _fenced,
    "backups": _backups,
}


def _shown(client: Client, page: Page) -> str:
    name, address, form = page
    response = client.get(address) if form is None else client.post(address, form, headers=HX)
    assert response.status_code != 500, (name, address, response.status_code)
    markup = response.content.decode()
    head = f"{'GET' if form is None else 'POST'} {response.status_code}\n"
    return head + texts(markup if name == "shell" else main_part(markup))


def _compare(state: str, found: dict[str, str]) -> None:
    folder = STORED / state
    if os.environ.get(RENEW):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.txt"):
            old.unlink()
        for name, text in found.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    stored = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    changed = []
    for name in sorted(found.keys() | stored.keys()):
        was, now = (texts_of.get(name, "").splitlines() for texts_of in (stored, found))
        changed += unified_diff(was, now, f"{state}/{name}.txt", "now", n=1, lineterm="")
    assert not changed, "\n".join([*changed, HOW])


@pytest.mark.parametrize("state", STATES)
def test_pages_read_as_reviewed(state, owner) -> None:
    pages = STATES[state]()
    found = {page[0]: _shown(owner.client, page) for page in pages}
    assert len(found) == len(pages), "two pages of one name"
    _compare(state, found)


def _without_token(client: Client) -> str:
    client.handler.enforce_csrf_checks = True
    return client.post("/login", {"username": "x"}).content.decode()


def test_pages_without_a_login_read_as_reviewed(anybody, stranger) -> None:
    found = {
        "login": texts(anybody.get("/login").content.decode()),
        "login-refused": texts(anybody.post("/login", {"username": "x", "password": "y"}).content.decode()),
        "no-role": texts(stranger.client.get("/nodes").content.decode()),
        "400": texts(render_to_string("400.html")),
        "form-refused": texts(_without_token(anybody)),
        "500": texts(render_to_string("500.html")),
        "503": texts(render_to_string("503.html", {"detail": "The disk of the database is full."})),
    }
    _compare("outside", found)
