"""The environment is made once, and again only when a lock or the Python has changed."""

import venv as standard_venv

import pytest

from mirbad.up import install

pytestmark = pytest.mark.unit


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A virtual environment without pip, and a lock of nothing."""
    monkeypatch.setattr(install, "_REQUIREMENTS", tmp_path)
    (tmp_path / "base.txt").write_text("# nothing\n")
    standard_venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path


def test_an_installed_list_is_not_installed_again(place, monkeypatch):
    calls = []
    monkeypatch.setattr(install, "_run_pip", lambda command, name, count: calls.append(name))
    monkeypatch.setattr(install, "make_venv", lambda venv: None)
    for _ in range(3):
        install.main([str(place / "venv"), "base"])
    assert calls == ["base"]
    (place / "base.txt").write_text("# something else\n")
    install.main([str(place / "venv"), "base"])
    assert calls == ["base", "base"]


def test_another_python_or_none_means_another_installation(place):
    venv = place / "venv"
    (venv / ".installed-base").write_text(install.digest(place / "base.txt", venv))
    assert install.is_installed(venv, "base")
    (venv / "bin" / "python").unlink()
    assert not install.is_installed(venv, "base")


def test_what_pip_says_is_shown_when_it_fails(place, monkeypatch):
    monkeypatch.setattr(
        install, "_run_pip", lambda *_: ["Collecting x", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"]
    )
    with pytest.raises(SystemExit, match="DO NOT MATCH THE HASHES"):
        install.install(place / "venv", "base")
    assert not install.is_installed(place / "venv", "base")
