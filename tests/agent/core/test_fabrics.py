"""Fabrics in agent.json: valid declarations, and refusals with a sentence."""

from pathlib import Path

import pytest

from agent import fabrics
from agent.cli import main
from agent.config import BadAgentConfig, read_config
from agent.telemetry import fabrics as told

pytestmark = pytest.mark.unit


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return machine(tmp_path / "sys", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


def machine(root: Path, *devices: str, state: str = "4: ACTIVE") -> Path:
    for device in devices:
        port = root / "class/infiniband" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    (root / "class/net/eth1").mkdir(parents=True, exist_ok=True)
    (root / "class/net/eth1/operstate").write_text("up\n")
    return root


def resolved(sysfs: Path, *statements: str) -> list[str]:
    return [str(fabric) for fabric in fabrics.resolve(fabrics.parse(statements), sysfs)]


def refused(sysfs: Path, *statements: str) -> str:
    with pytest.raises(fabrics.BadFabric) as caught:
        fabrics.resolve(fabrics.parse(statements), sysfs)
    return str(caught.value)


def test_adapters_may_be_named(sysfs: Path) -> None:
    assert resolved(sysfs, "ib-b:mlx5_2,mlx5_3") == ["ib-b:mlx5_2,mlx5_3"]
    assert resolved(sysfs, "ib-a:mlx5_0", "lan:eth1") == ["ib-a:mlx5_0", "lan:eth1"]


def test_two_adapters_are_taken_by_default_when_there_are_just_two_to_take(sysfs: Path, tmp_path: Path) -> None:
    assert resolved(machine(tmp_path / "two", "mlx5_0", "mlx5_1"), "ib-b") == ["ib-b:mlx5_0,mlx5_1"]
    assert resolved(sysfs, "ib-a:mlx5_0,mlx5_2", "ib-b") == ["ib-a:mlx5_0,mlx5_2", "ib-b:mlx5_1,mlx5_3"]
    assert resolved(sysfs, "ib-a", "ib-b") == ["ib-a:mlx5_0,mlx5_1", "ib-b:mlx5_2,mlx5_3"]


def test_nothing_is_guessed(sysfs: Path, tmp_path: Path) -> None:
    text = refused(sysfs, "ib-b")
    assert "this machine has 4: mlx5_0, mlx5_1, mlx5_2, mlx5_3" in text
    assert "ib-b:mlx5_0,mlx5_1" in text
    assert "No InfiniBand adapter is free" in refused(machine(tmp_path / "none"), "ib-b")
    assert "this machine has 1:" in refused(machine(tmp_path / "one", "mlx5_0"), "ib-b")


def test_one_adapter_in_two_fabrics_is_refused(sysfs: Path) -> None:
    text = refused(sysfs, "ib-a:mlx5_0,mlx5_1", "ib-b:mlx5_1,mlx5_2")
    assert "mlx5_1 is listed for two fabrics, ib-a and ib-b" in text
    assert "hang" in text
    assert "twice" in refused(sysfs, "ib-a:mlx5_0,mlx5_0")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ib-b:mlx5_9", "mlx5_9 of the fabric ib-b is not on this machine"),
        ("IB B", "not a valid fabric name"),
        ("", "not a valid fabric name"),
        ("ib-b:", "not a valid adapter name"),
        ("ib-b:mlx5_0,,mlx5_1", "not a valid adapter name"),
        ("ib-b:../mlx5_0", "not a valid adapter name"),
    ],
)
def test_statements_that_cannot_be_are_refused_in_words(sysfs: Path, statement: str, said: str) -> None:
    assert said in refused(sysfs, statement)


def test_a_fabric_is_stated_once(sysfs: Path) -> None:
    assert "declared twice" in refused(sysfs, "ib-b:mlx5_0", "ib-b:mlx5_1")


def test_the_configuration_is_read_with_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"fabrics": ["ib-a:mlx5_0", "ib-b:mlx5_0"]}')
    with pytest.raises(BadAgentConfig, match="two fabrics, ib-a and ib-b"):
        read_config(path)
    path.write_text('{"rendezvous_ports": [200, 100]}')
    with pytest.raises(BadAgentConfig, match="rendezvous_ports"):
        read_config(path)


def test_what_is_told_is_the_configuration_or_else_the_join(sysfs: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    assert told.capabilities((), state, sysfs) == ()
    told.keep(state, fabrics.parse(["ib-b:mlx5_2,mlx5_3"]))
    (joined,) = told.capabilities((), state, sysfs)
    assert (joined.name, joined.adapters, joined.problem) == ("ib-b", ("mlx5_2", "mlx5_3"), None)
    (configured,) = told.capabilities(("ib-c:mlx5_0",), state, sysfs)
    assert configured.name == "ib-c"


def test_an_adapter_that_is_gone_or_down_is_a_problem_of_its_fabric_alone(sysfs: Path, tmp_path: Path) -> None:
    (sysfs / "class/infiniband/mlx5_2/ports/1/state").write_text("1: DOWN\n")
    stated = ("ib-a:mlx5_0,mlx5_1", "ib-b:mlx5_2,mlx5_3")
    first, second = told.capabilities(stated, tmp_path, sysfs)
    assert first.problem is None
    assert "mlx5_2 of the fabric ib-b is down (1: DOWN)" in (second.problem or "")
    assert told.warnings(stated, tmp_path, sysfs) == (second.problem,)
    gone, there = told.capabilities(("ib-a:mlx5_8", "ib-b:mlx5_3"), tmp_path, sysfs)
    assert ("not on this machine" in (gone.problem or ""), there.problem) == (True, None)
    (tmp_path / "fabrics.json").write_text("{")
    assert "cannot be read" in told.warnings((), tmp_path, sysfs)[0]
    assert told.capabilities((), tmp_path, sysfs) == ()


def test_a_join_that_states_nonsense_sends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.json"
    config.write_text(f'{{"state_dir": "state", "sysfs_root": "{tmp_path / "sys"}"}}')
    machine(tmp_path / "sys", "mlx5_0", "mlx5_1")
    join = ["join", "--enroll-url", "https://127.0.0.1:1", "--ca-hash", "sha256:" + "a" * 64, "--node-id", "n1"]
    for statements, said in (
        (["ib-a:mlx5_0", "ib-b:mlx5_0"], "two fabrics, ib-a and ib-b"),
        (["ib-b:mlx5_7"], "is not on this machine"),
    ):
        stated = [part for one in statements for part in ("--fabric", one)]
        assert main([*join, "--config", str(config), *stated]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
