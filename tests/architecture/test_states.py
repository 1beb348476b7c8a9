"""Each state table, its database constraint and its diagram say the same."""

import re

import pytest
from django.db.models import Model

import jobs.states
import models_app.states
import nodes.states
from jobs.kinds import KINDS
from jobs.models import Operation
from mirbad.kernel.states import StateTable
from models_app.models import Placement
from nodes.models import CaRotation, Node
from tests.architecture.source import ROOT

TABLES: dict[str, tuple[StateTable, type[Model], str]] = {
    "node-lifecycle": (nodes.states.LIFECYCLE, Node, "lifecycle"),
    "ca-rotation": (nodes.states.CA_ROTATION, CaRotation, "stage"),
    "node-reachability": (nodes.states.REACHABILITY, Node, "reachability"),
    "placement-desired": (models_app.states.DESIRED, Placement, "desired"),
    "placement-observed": (models_app.states.OBSERVED, Placement, "observed"),
    "operation": (jobs.states.OUTCOME, Operation, "outcome"),
}


def _moves_in_diagram(text: str) -> set[tuple[str, str]]:
    return {(a, b) for a, b in re.findall(r"^\s*(\w+) --> (\w+)", text, re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_diagram_draws_exactly_the_table(name: str) -> None:
    table, _, _ = TABLES[name]
    text = (ROOT / "docs" / "states" / f"{name}.md").read_text()
    expected = {(state, following) for state, after in table.moves.items() for following in after}
    assert _moves_in_diagram(text) == expected
    assert all(re.search(rf"^\| `{state}` \|", text, re.MULTILINE) for state in table.states), "each state has its line"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_database_refuses_a_state_that_the_table_does_not_know(name: str) -> None:
    table, model, column = TABLES[name]
    conditions = [str(c.condition) for c in model._meta.constraints if hasattr(c, "condition") and c.condition]
    assert any(column in condition and all(f"'{s}'" in condition for s in table.states) for condition in conditions)
    assert {value for value, _ in model._meta.get_field(column).choices} == set(table.states)


def test_the_names_of_the_tables_are_those_of_errors() -> None:
    assert {name: table.name for name, (table, _, _) in TABLES.items()} == {
        "node-lifecycle": "node lifecycle",
        "ca-rotation": "CA rotation",
        "node-reachability": "node reachability",
        "placement-desired": "desired placement state",
        "placement-observed": "observed placement state",
        "operation": "operation",
    }


def test_a_stranded_node_has_the_code_of_the_guide() -> None:
    assert nodes.states.RE_PAIR == "ca_rotation_stranded"


def test_the_concurrency_groups_are_those_of_the_kinds() -> None:
    assert {kind.concurrency_group for kind in KINDS.values()} == set(jobs.states.CONCURRENCY_GROUPS)


def test_every_table_in_the_source_is_held_here() -> None:
    values = [value for module in (nodes.states, models_app.states, jobs.states) for value in vars(module).values()]
    found = {table.name for table in values if isinstance(table, StateTable)}
    assert found == {table.name for table, _, _ in TABLES.values()}
