"""The agent as another machine gets it: complete, the same bytes each time, installable without a network."""

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile

import pytest

from mirbad.bundles import archive, command


@pytest.fixture(scope="module")
def bundle():
    return archive.build()


def members(bundle):
    with tarfile.open(fileobj=io.BytesIO(bundle.content)) as packed:
        return {name: packed.extractfile(name).read() for name in packed.getnames()}


@pytest.mark.unit
def test_two_builds_are_the_same_to_the_last_byte(bundle):
    assert archive.build().content == bundle.content
    assert hashlib.sha256(bundle.content).hexdigest() == bundle.sha256


@pytest.mark.unit
def test_it_holds_code_lock_unit_sample_and_installer_and_nothing_of_the_master(bundle):
    names = {name.removeprefix(f"{bundle.folder}/") for name in members(bundle)}
    wheel = f"mirbad_agent-{bundle.version}-py3-none-any.whl"
    assert names == {
        *("install.sh", "mirbad-agent.service", "agent.json.example", "README.md", "requirements-agent.txt", wheel)
    }
    with zipfile.ZipFile(io.BytesIO(members(bundle)[f"{bundle.folder}/{wheel}"])) as code:
        assert {name.split("/")[0] for name in code.namelist()} == {"agent", f"mirbad_agent-{bundle.version}.dist-info"}


@pytest.mark.unit
def test_every_requirement_is_pinned_by_hash(bundle):
    lock = members(bundle)[f"{bundle.folder}/requirements-agent.txt"].decode()
    entries = [line for line in lock.splitlines() if "==" in line]
    assert len(entries) > 5
    assert lock.count("--hash=sha256:") >= len(entries)
    assert "://" not in lock


@pytest.mark.unit
def test_pip_installs_the_wheel_and_its_command_runs(bundle, tmp_path):
    name = f"mirbad_agent-{bundle.version}-py3-none-any.whl"
    (tmp_path / name).write_bytes(members(bundle)[f"{bundle.folder}/{name}"])
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(tmp_path / name)], check=True)
    done = subprocess.run(
        [target / "bin" / "mirbad-agent", "--version"],
        env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"mirbad-agent {bundle.version}"


@pytest.mark.unit
def test_the_command_checks_the_hash_before_it_runs_anything(bundle):
    text = command.install_command(bundle, "http://master.example:8080/", ["--node-id", "pc-1"])
    assert text.index(bundle.sha256) < text.index("tar -xzf") < text.index("install.sh --node-id pc-1")
    subprocess.run(["bash", "-n", "-c", text], check=True)


@pytest.mark.app
def test_anybody_may_list_and_fetch_the_archive(client, bundle):
    (row,) = client.get("/agent/bundles").json()["bundles"]
    assert (row["sha256"], row["size"]) == (bundle.sha256, len(bundle.content))
    answer = client.get(row["url"])
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).hexdigest() == row["sha256"]
    assert client.get(row["url"], headers={"If-None-Match": answer["ETag"]}).status_code == 304
    assert client.post("/agent/bundles").status_code == 405
    assert client.get("/agent/bundles/linux-z80.tar.gz").status_code == 404
