"""The verb `restore` of ``manage.py backup``: shows what an import would do, asks, and does it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from django.core.management.base import CommandError, CommandParser

from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices, ImportOptions, TargetChoice
from jobs.backup.importing.plan import NodeMatch, PlannedAction, PlannedModel, RestorePlan
from jobs.requests import restore
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.errors import InvalidRequest

_OTHERS = "all"
_FORM = "model:NAME or node:NAME (a node of the backup)"


class _Output(Protocol):
    """The output of a command."""

    def write(self, msg: str) -> object:
        """Write a line."""


def add_arguments(parser: CommandParser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="WHAT=NODE[:GPU,…]",
        help=f"place on a node of this master; WHAT is {_FORM}; GPUs by UUID, for a model",
    )
    parser.add_argument(
        "--unplaced", action="append", default=[], metavar="WHAT", help=f"leave unplaced: {_FORM}, or {_OTHERS}"
    )
    parser.add_argument("--no-start", action="store_true", help="start no model")
    parser.add_argument("--no-node-settings", action="store_true", help="change no settings of nodes")
    parser.add_argument("--no-start-times", action="store_true", help="import no measured start times")
    parser.add_argument("--no-destinations", action="store_true", help="connect no destination of backups again")
    parser.add_argument("--yes", action="store_true", help="import without a question")


def run(output: _Output, file: Path, passphrase: str | None, options: Mapping[str, Any]) -> None:
    """Show the plan, ask, and import. Raises CommandError, MirbadError, OSError."""
    choices = _choices(options)
    read = content.read(file, passphrase)
    plan = restore.preview(read, choices)
    for line in lines_of(plan):
        output.write(line)
    if plan.unresolved:
        raise CommandError(
            f"{len(plan.unresolved)} models were on machines that are not here. Add --target node:NAME=NODE or "
            f"--target model:NAME=NODE, or leave them unplaced with --unplaced {_OTHERS}. Nothing was changed."
        )
    if not options["yes"] and input("Import this? Type yes: ").strip() != "yes":
        raise CommandError("Nothing was changed.")
    operation = restore.request(read, choices, plan.digest, CONFIG)
    output.write(f"Imported. Downloads and starts go on as operation {operation.pk} while Mirbad runs.")


def _choices(options: Mapping[str, Any]) -> ImportChoices:
    targets = [_target(text) for text in options["target"]]
    left = [text for text in options["unplaced"] if text != _OTHERS]
    targets += [replace(_subject(text), unplaced=True) for text in left]
    return ImportChoices(
        targets=tuple(targets),
        options=ImportOptions(
            start_models=not options["no_start"],
            node_settings=not options["no_node_settings"],
            start_times=not options["no_start_times"],
            destinations=not options["no_destinations"],
        ),
        others_unplaced=_OTHERS in options["unplaced"],
    )


def _target(text: str) -> TargetChoice:
    what, _, where = text.partition("=")
    node_id, _, gpus = where.partition(":")
    return replace(_subject(what), node_id=node_id, gpu_uuids=tuple(filter(None, gpus.split(","))))


def _subject(text: str) -> TargetChoice:
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("model", "node") or not name:
        raise InvalidRequest(f"{text!r} is not {_FORM}.")
    return TargetChoice(model_id=name) if kind == "model" else TargetChoice(backup_node_id=name)


def lines_of(plan: RestorePlan) -> Iterator[str]:
    """Yield the plan as text: what changes, what is left out, and why."""
    for node in plan.nodes:
        match = {
            NodeMatch.SAME: f"is {node.node_id} here",
            NodeMatch.NAME_ONLY: "is another machine here",
            NodeMatch.NONE: "is not here",
        }[node.match]
        waits = f", {node.unresolved} of its models need a target" if node.unresolved else ""
        yield f"Node {node.id} {match}{waits}."
        for one in node.settings:
            what = f"reserve of {one.gpu_uuid}" if one.gpu_uuid else one.name
            yield f"  {what}: {one.before!r} becomes {one.after!r}"
        yield from (f"  {note}" for note in node.notes)
    for action in PlannedAction:
        for model in plan.models:
            if model.action == action:
                yield from _model(model)
    for key in plan.keys:
        yield f"API key {key.name}: {key.action.value}. {key.reason}".rstrip()
    for place in plan.destinations:
        yield f"Destination {place.name}: {place.action.value}. {place.reason}".rstrip()
    yield from plan.notes
    yield plan.summary()


def _model(model: PlannedModel) -> Iterator[str]:
    where = ", ".join(f"{one.node_id} {' '.join(one.gpu_uuids)}".rstrip() for one in model.places)
    parts = [f"Model {model.id}: {model.action.value}"]
    parts += [f"({', '.join(model.changes)})"] if model.changes else []
    parts += [f"on {where}"] if where else []
    parts += ["and started"] if model.start else []
    yield f"{' '.join(parts)}. {model.reason}".rstrip()
    if model.needs_target:
        yield f"  It needs a target: it was on {', '.join(model.backup_node_ids)}."
    yield from (f"  {note}" for note in model.notes)
