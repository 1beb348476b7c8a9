"""The table of faults names tests that exist, and the trend of measurements is that of textbooks."""

import ast
import random

import pytest

from tests.architecture.source import ROOT, tree
from tests.figures.faults_kinds import KINDS
from tests.figures.trend import trend


def test_every_test_of_the_table_of_faults_exists() -> None:
    lost = []
    for test in dict.fromkeys(test for kind in KINDS for test in kind.tests):
        file, _, function = test.partition("::")
        path = ROOT / file
        names = {node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        if function and function not in names:
            lost.append(test)
    assert lost == []


def test_no_two_rows_of_the_table_have_one_name() -> None:
    names = [(kind.fault, kind.kind) for kind in KINDS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("per_hour", [-3.0, 0.0, 0.5, 40.0])
def test_a_line_without_noise_has_its_slope(per_hour: float) -> None:
    found = trend([(second, 100 + per_hour * second / 3600) for second in range(0, 3600, 10)])
    assert found.per_hour == pytest.approx(per_hour)
    assert found.margin == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_the_interval_holds_the_slope_though_neighbors_resemble_each_other(correlation: float) -> None:
    chance = random.Random(3)
    within = 0
    for _ in range(200):
        noise, points = 0.0, []
        for second in range(0, 3600, 10):
            noise = correlation * noise + chance.gauss(0, 1)
            points.append((float(second), 2.0 * second / 3600 + noise))
        found = trend(points)
        within += abs(found.per_hour - 2.0) <= found.margin
    assert within >= 180
