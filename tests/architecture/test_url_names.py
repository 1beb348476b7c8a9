"""Upward links: a page of a lower app names a page of an upper app by its URL name alone, and each such name is listed.

Python must not import upwards; an import contract holds that. A URL name is a string that no contract sees, so this
list is the contract: a lower app's pages name exactly these pages of the apps above.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from django.urls import URLPattern, URLResolver, get_resolver

from mirbad import recovery_urls
from mirbad.web.context import _OWN_PLACE
from tests.architecture.source import ROOT, modules, name

APPS = ("web", "audit", "accounts", "nodes", "models", "jobs")
"""URL namespaces from the bottom up. ``web`` is shared by all pages; home and dashboard are above all apps."""

FOLDERS = {
    "templates/parts": "web",
    "templates/audit": "audit",
    "templates/accounts": "accounts",
    "templates/nodes": "nodes",
    "templates/models": "models",
    "templates/jobs": "jobs",
    "audit": "audit",
    "mirbad/accounts": "accounts",
    "mirbad/web": "web",
    "nodes": "nodes",
    "models_app": "models",
    "jobs": "jobs",
}

UPWARD = {
    ("accounts", "models:keys"): "the page of admin tokens points to the keys for /v1",
    ("audit", "jobs:detail"): "an audit line names its operation",
    ("audit", "models:detail"): "an audit line names its model",
    ("audit", "nodes:detail"): "an audit line names its node",
    ("audit", "nodes:witnesses"): "fragment: what each node holds of the log",
    ("nodes", "jobs:ca"): "button: the rotation of the fleet's CA",
    ("nodes", "jobs:ca-card"): "fragment: an open CA rotation, on the list of nodes",
    ("nodes", "jobs:ca-of-node"): "fragment: a node's part in an open CA rotation",
    ("nodes", "jobs:node-cells"): "fragment: open operations, one column of the list of nodes",
    ("nodes", "jobs:node-drain"): "button: drain, which may move the node's models off",
    ("nodes", "jobs:node-history"): "fragment: the operations tab of a node",
    ("nodes", "jobs:node-images"): "fragment: container images on a node, in its settings",
    ("nodes", "jobs:node-readmit"): "button: accept the node's expired certificate once",
    ("nodes", "jobs:node-revoke"): "button: revoke the node",
    ("nodes", "jobs:node-rotate"): "button: rotate the node's certificate",
    ("nodes", "jobs:of-node"): "fragment: open operations of a node",
    ("nodes", "models:detail"): "a GPU card names the models on it",
    ("nodes", "models:node-cells"): "fragment: models, one column of the list of nodes",
    ("nodes", "models:of-node"): "fragment: the models tab of a node",
    ("models", "jobs:download-new"): "button: download a model to a node",
    ("models", "jobs:model-move"): "button: move the model",
    ("models", "jobs:model-restart"): "button: restart the model",
    ("models", "jobs:model-start"): "button: start the model",
    ("models", "jobs:model-stop"): "button: stop the model",
    ("models", "jobs:model-unplace"): "button: unplace the model",
    ("models", "jobs:of-model"): "fragment: open operations of a model",
    ("models", "jobs:replica-start"): "button: start one replica",
    ("models", "jobs:replica-stop"): "button: stop one replica",
    ("models", "jobs:timeline"): "fragment: operations of a model, newest first",
}
"""(app, URL name): the reason why a page of the app links there."""

_IN_TEMPLATE = re.compile(r"""\{%-?\s*(?:url|link)\s+["']([\w:-]+)["']""")
_IN_PYTHON = re.compile(r"""\b(?:reverse|redirect)\(\s*["']([\w-]+:[\w-]+)["']""")


def _sources() -> Iterator[tuple[str, Path, re.Pattern[str]]]:
    for folder, app in FOLDERS.items():
        if folder.startswith("templates/"):
            yield from ((app, path, _IN_TEMPLATE) for path in sorted((ROOT / folder).rglob("*.html")))
        else:
            yield from ((app, path, _IN_PYTHON) for path in modules() if name(path).startswith(f"{folder}/"))


def _uses() -> Iterator[tuple[str, str, str]]:
    """App, URL name, and the file that uses it."""
    for app, path, pattern in _sources():
        for url_name in pattern.findall(path.read_text()):
            yield app, url_name, name(path)


def _upward() -> dict[tuple[str, str], str]:
    found = {}
    for app, url_name, where in _uses():
        above = url_name.partition(":")[0]
        if above in APPS and APPS.index(above) > APPS.index(app):
            found[app, url_name] = where
    return found


def _known() -> set[str]:
    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[str]:
        for entry in patterns:
            if isinstance(entry, URLResolver):
                yield from walk(entry.url_patterns, f"{prefix}{entry.namespace}:" if entry.namespace else prefix)
            elif entry.name:
                yield prefix + entry.name

    return set(walk([*get_resolver().url_patterns, *recovery_urls.urlpatterns], ""))


def test_every_link_upwards_is_listed_and_every_listed_one_is_used() -> None:
    found = _upward()
    assert sorted(set(found) - set(UPWARD)) == [], "not listed above: give the reason there"
    assert sorted(set(UPWARD) - set(found)) == [], "listed above, but used nowhere"


def test_every_url_name_of_pages_resolves() -> None:
    known = _known()
    wrong = [(where, url_name) for _, url_name, where in _uses() if url_name not in known]
    wrong += [("mirbad/web/context.py", url_name) for url_name in _OWN_PLACE if url_name not in known]
    assert not wrong


def test_every_template_folder_belongs_to_an_app() -> None:
    folders = {path.parent for path in (ROOT / "templates").rglob("*.html") if path.parent != ROOT / "templates"}
    unknown = [name(folder) for folder in folders if not any(name(folder).startswith(known) for known in FOLDERS)]
    assert sorted(unknown) == ["templates/admin", "templates/api"]
