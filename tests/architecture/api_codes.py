"""Every code of the admin API, as the source has it, and the page of the guide that lists them.

Codes and statuses are read from the classes and calls; what to do about a code is written in `FIXES`.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from agent.deliveries import docker_gpus
from agent.telemetry import faults
from agent.wire.errors import AgentCode
from agent.wire.images import PullFailure
from mirbad.api import problems
from mirbad.kernel.errors import MirbadError
from models_app.registry import inputs
from nodes import queries
from tests.architecture.api_fixes import FIXES
from tests.architecture.source import ROOT, modules, tree

PAGE = ROOT / "docs/api-codes.md"
RESPONSE, OPERATION, PLACEMENT, NODE, FIELD = "response", "operation", "placement", "node", "field"
_APPS = ("mirbad", "audit", "nodes", "models_app", "jobs")
_NOT_IMPORTED = {"migrations", "__main__", "asgi", "celery", "commands"}
# Their code is that of the error that they carry, or no caller gets it.
_CARRIERS = {"GatewayRefused", "LeaseLost", "StepFailed", "_FrameworkError"}
_CALLS = {
    **dict.fromkeys(("StepFailed", "StoredFailure"), OPERATION),
    **dict.fromkeys(("Problem", "Rejection"), PLACEMENT),
    **dict.fromkeys(("Condition", "Reason", "coded", "_raise"), NODE),
}
_SECOND = {"Rejection", "_raise"}
"""Calls whose second argument is the code."""
_SETTINGS = re.compile(r"(?:argument|env)_[a-z_]+")
PASSED_ON = {
    "agent/common/reason.py: code", "agent/running/instances.py: view.notice_code",
    "jobs/base.py: self.code", "jobs/kinds/ca_rotation.py: error.code",
    "jobs/kinds/backup.py: error.code", "jobs/kinds/backup_delete.py: error.code",
    "jobs/kinds/launch.py: failure.step_code",
    "jobs/kinds/move/__init__.py: failure.step_code", "jobs/kinds/move/bring.py: failure.step_code",
    "jobs/kinds/move/handover.py: failure.step_code", "jobs/kinds/move/plan.py: error.code",
    "jobs/kinds/move/stop_first.py: failure.step_code", "jobs/kinds/rotate_cert.py: error.code",
    "jobs/kinds/rotate_cert.py: refusal.agent_code", "jobs/kinds/takeover.py: result.error.code",
    "jobs/steps/artifacts.py: code", "jobs/kinds/unplace.py: error.code", "jobs/kinds/unplace.py: failure.step_code",
    "jobs/steps/artifacts.py: error.code", "jobs/steps/artifacts.py: failed.step_code",
    "jobs/steps/artifacts.py: refusal.agent_code", "jobs/steps/instances.py: error.code",
    "jobs/steps/instances.py: refusal.agent_code", "jobs/steps/starting.py: error.code",
    "jobs/steps/starting.py: problem.code", "jobs/worker.py: error.code",
    "models_app/placement/planner.py: code", "models_app/placement/planner.py: found[0].code",
    "models_app/placement/planner.py: machine.unavailable_code", "models_app/placement/planner.py: problem.code",
    "nodes/queries.py: REASON_CODES.get(node.reachability, 'node_offline')", "nodes/queries.py: item.code",
    "nodes/queries.py: str(stored.get('code') or OTHER)", "nodes/reachability.py: code",
    "nodes/witnesses.py: code",
}  # fmt: skip
"""Calls that pass on a code from elsewhere, which is collected there."""
_HEAD = """# Codes of the admin API

Generated from the source; `tests/architecture/api_fixes.py` has the last column. A *response* has the code in `code` of
its problem document, with a status and a sentence. An *operation* has it in `error.code`, a *placement* in `problems`,
a *node* in `reasonCodes`, in the order of `reasons`, and a *field* of a request in `problems` of its refusal, where
codes that are not listed are those of the framework and name the rule. Pages show the same codes. Codes of `/v1` are in
[the gateway](gateway.md).

| Code | Where | Status | What to do |
|---|---|---|---|
"""


Node = TypeVar("Node", bound=ast.AST)


@dataclass
class Code:
    """The places of a code, and the statuses of its responses."""

    places: set[str] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)


def collect() -> dict[str, Code]:
    """Return every code."""
    found: dict[str, Code] = {}
    sources = (_of_errors, _of_framework, _of_agents, _of_nodes, _of_calls, _of_doors, _of_fields)
    for code, place, status in (line for source in sources for line in source()):
        one = found.setdefault(code, Code())
        one.places.add(place)
        one.statuses |= {status} - {0}
    return found


def page() -> str:
    """Return the page."""
    rows = []
    for code, one in sorted(collect().items()):
        statuses = ", ".join(map(str, sorted(one.statuses)))
        rows.append(f"| `{code}` | {', '.join(sorted(one.places))} | {statuses} | {FIXES.get(code, '')} |\n")
    return _HEAD + "".join(rows)


def _subclasses(of: type[MirbadError]) -> Iterator[type[MirbadError]]:
    yield of
    for one in of.__subclasses__():
        yield from _subclasses(one)


def _of_errors() -> Iterator[tuple[str, str, int]]:
    for app in map(importlib.import_module, _APPS):
        for info in pkgutil.walk_packages(app.__path__, f"{app.__name__}."):
            if not _NOT_IMPORTED & set(info.name.split(".")):
                importlib.import_module(info.name)
    for error in _subclasses(MirbadError):
        if error.__module__.split(".")[0] in _APPS and error.__name__ not in _CARRIERS:
            yield error.code, RESPONSE, error.http_status


def _of_framework() -> Iterator[tuple[str, str, int]]:
    """Yield the codes of `problems`: literals of its errors, and its table by status."""
    statuses = {"unauthenticated": 401, "not_acceptable": 406}
    for node in ast.walk(ast.parse(inspect.getsource(problems))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_FrameworkError":
            for code in _texts(node.args[0], problems.__name__):
                yield code, RESPONSE, statuses.get(code, 403)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, int):
                    yield from ((code, RESPONSE, key.value) for code in _texts(value, problems.__name__))


def _of_agents() -> Iterator[tuple[str, str, int]]:
    yield from ((code.value, OPERATION, 0) for code in (*AgentCode, *PullFailure))
    yield from ((code, OPERATION, 0) for code in _constants(docker_gpus))
    yield from ((code, NODE, 0) for code in _constants(faults))


def _constants(module: Any) -> Iterator[str]:
    """Yield the codes that a module names in constants of its own."""
    yield from (value for name, value in vars(module).items() if name.isupper() and name[0] != "_" and _is_code(value))


def _of_nodes() -> Iterator[tuple[str, str, int]]:
    yield from ((code, NODE, 0) for code in ("gpu_problem", "node_offline", *queries.REASON_CODES.values()))
    yield queries.OTHER, NODE, 0


def _of_calls() -> Iterator[tuple[str, str, int]]:
    for path in modules():
        module = _module(path)
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            words = {word.arg: word.value for word in node.keywords}
            codes = node.args[1:2] if called in _SECOND else node.args[:1]
            for code in [*codes, *([words["code"]] if "code" in words else [])] if called in _CALLS else []:
                yield from ((text, _CALLS[called], 0) for text in _texts(code, module))
            if "reason_code" in words:
                yield from ((text, OPERATION, 0) for text in _texts(words["reason_code"], module))


def passed_on() -> set[str]:
    """Return the calls in which no code can be read, as in `PASSED_ON`."""
    found = set()
    for path, node in _nodes(ast.Call, everywhere=True):
        called = ast.unparse(node.func).rpartition(".")[2]
        module = _module(path)
        for code in (node.args[1:2] if called in _SECOND else node.args[:1]) if called in _CALLS else []:
            if not list(_texts(code, module)):
                found.add(f"{path.relative_to(ROOT)}: {ast.unparse(code)}")
    return found


def _of_doors() -> Iterator[tuple[str, str, int]]:
    """Yield the codes of what answers before Django does: calls with a status, a code and a sentence."""
    for _, node in _nodes(ast.Call):
        for pair in zip(node.args, node.args[1:], strict=False):
            match pair:
                case (ast.Constant(value=int() as status), ast.Constant(value=str() as code)) if 400 <= status < 600:
                    yield from [(code, RESPONSE, status)] if _is_code(code) else []


def _of_fields() -> Iterator[tuple[str, str, int]]:
    """Yield the codes in ``problems`` of a refusal, and those that an operation's row has beside its errors."""
    for path, node in _nodes(ast.Dict):
        where = OPERATION if path.name == "ledger.py" else FIELD
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "code":
                yield from ((code, where, 0) for code in _texts(value, _module(path)))
    for path, node in _nodes(ast.Call):
        if ast.unparse(node.func) == "_problem":
            yield from ((code, FIELD, 0) for code in _texts(node.args[0], _module(path)))
        if ast.unparse(node.func).endswith("ErrorDetail"):
            codes = (word.value for word in node.keywords if word.arg == "code")
            yield from ((text, FIELD, 0) for code in codes for text in _texts(code, _module(path)))
    yield from ((code, FIELD, 0) for code in inputs._CODES.values())
    for path, node in _nodes(ast.Constant):
        if path.parent.name == "engine_settings" and isinstance(node.value, str) and _SETTINGS.fullmatch(node.value):
            yield node.value, FIELD, 0


def _nodes(kind: type[Node], *, everywhere: bool = False) -> Iterator[tuple[Path, Node]]:
    """Yield the nodes of a kind, those of the gateway and of agents only `everywhere`: their codes are their own."""
    for path in modules():
        own = not {"agent", "gateway"} & set(path.parts) or path.parent.name == "engine_settings"
        if own or everywhere:
            yield from ((path, node) for node in ast.walk(tree(path)) if isinstance(node, kind))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _texts(code: ast.expr, module: str) -> Iterator[str]:
    """Yield the codes that an expression may be: literals, constants of its module, and both sides of a choice."""
    if isinstance(code, ast.IfExp):
        yield from (*_texts(code.body, module), *_texts(code.orelse, module))
    elif isinstance(code, ast.BoolOp):
        yield from (text for value in code.values for text in _texts(value, module))
    elif isinstance(code, ast.Name) and code.id.isupper():
        yield from filter(_is_code, [getattr(importlib.import_module(module), code.id, None)])
    elif isinstance(code, ast.Constant) and _is_code(code.value):
        yield code.value


def _is_code(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value.replace("_", "").isalpha() and value.islower()
