"""The master's machine burns: an empty one becomes the master by the backup, and the node never stopped serving."""

import shutil
import time

import pytest

from tests.bench.services import Missing, postgres
from tests.e2e.fleet import Failed, Fleet
from tests.e2e.host import Host, require_root_and_tools
from tests.e2e.joining import is_online, join
from tests.e2e.recovery_drill import RecoveryDrill
from tests.waiting import until, until_no

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

# Engines are found by the name of their model, and another machine may be under test at the same time.
PASSPHRASE = "correct horse battery staple"
CONFIRMED = "the previous master is stopped"


def _backup_of(fleet, folder):
    """Return the arguments that recover `fleet` from a backup made now."""
    (folder / "passphrase").write_text(PASSPHRASE)
    backup, *word = str(folder / "fleet.backup"), "--passphrase-file", str(folder / "passphrase")
    fleet.manage("backup", "create", backup, *word)
    return backup, *word, "--confirm"


def _recover(fleet, arguments):
    refused = fleet.manage("recover", *arguments, "maybe", check=False)
    assert refused.returncode == 1
    assert "Nothing was changed" in refused.stderr
    assert not (fleet.data / "mirbad.sqlite3").exists()
    said = fleet.manage("recover", *arguments, CONFIRMED).stdout
    assert "Recovered 2 nodes, 2 models, 1 API keys" in said
    again = fleet.manage("recover", *arguments, CONFIRMED, check=False)
    assert "This master is not empty" in again.stderr


@pytest.fixture
def host():
    require_root_and_tools()
    machine = Host(2).start()
    yield machine
    machine.close()


def test_a_lost_master_comes_back_from_its_backup_and_no_engine_ends(host, wheels, tmp_path):
    settings = {"MIRBAD_BIND": "0.0.0.0", "MIRBAD_HOSTS": host.master_address}
    lost = Fleet(tmp_path / "lost", **settings)
    found = Fleet(tmp_path / "found", **settings)
    found.ports = lost.ports
    found.environ.update({name: str(port) for name, port in lost.ports.items()})
    try:
        lost.start()
        join(lost, host, wheels, "pc-1", "survivor")
        engines = lost.engines("survivor")
        assert len(engines) == 1
        lost.define_sim("idle")
        key, token = lost.key, lost.token
        arguments = _backup_of(lost, tmp_path)
        lost.api("POST", "keys", {"name": "made after the backup"})
        lost.kill()
        shutil.rmtree(lost.data)

        _recover(found, arguments)
        began = time.monotonic()
        found.start(seconds=200)
        until_no((Failed, OSError), lambda: found.chat("survivor", key=key), 90, every=0.2)
        seconds = time.monotonic() - began
        print(f"# from the start to the first chat: {seconds:.1f} s")
        assert found.engines("survivor") == engines, "the engine that ran before"
        found._token = token
        both = "both nodes:\n" + "\n".join(found.lines)
        until(lambda: is_online(found, "pc-1") and is_online(found, "local"), both, 60, every=0.5)
        assert {model["id"] for model in found.api("GET", "models")["items"]} == {"survivor", "idle"}
        fencing = found.api("GET", "fencing")
        assert not fencing["fenced"]
        assert fencing["epoch"] > 1
        names = {row["name"] for row in found.api("GET", "keys")["items"]}
        assert "made after the backup" not in names
        until(lambda: not (found.data / "takeover").exists(), "the request of the takeover to go", 30)
        line = next(row for row in found.api("GET", "audit?max=200")["items"] if row["action"] == "restore")
        assert line["actor"] == "system:restore"
    finally:
        found.close()
        lost.close()


@pytest.fixture
def database():
    try:
        with postgres() as url:
            yield url
    except Missing as missing:
        pytest.skip(str(missing))


def test_a_master_comes_back_by_the_page_on_another_database_and_the_old_one_commands_nothing(
    host, wheels, tmp_path, database
):
    drill = RecoveryDrill(tmp_path, [host], wheels, database)
    try:
        drill.build()
        drill.recover(drill.lose())
        drill.check_that_all_is_there()
        drill.start_the_old_one()
        assert drill.check_that_the_old_one_commands_nothing() == ["PendingTakeover"]
        print(f"# from the confirmation to the first chat: {drill.times.first:.1f} s")
    finally:
        drill.close()
