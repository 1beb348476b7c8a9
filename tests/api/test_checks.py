"""System checks of the environment."""

import pytest

from mirbad import checks
from mirbad.kernel.conf import read_settings

pytestmark = pytest.mark.unit


def found(monkeypatch, tmp_path, **values):
    given = read_settings(
        {"MIRBAD_DATA": str(tmp_path), **{f"MIRBAD_{name.upper()}": value for name, value in values.items()}}
    )
    monkeypatch.setattr(checks, "settings", lambda: given)
    return [message.id for message in checks.environment()]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ({}, []),
        ({"bind": "0.0.0.0"}, ["mirbad.W001"]),
        ({"bind": "::"}, ["mirbad.W001"]),
        ({"bind": "[::]:8000"}, ["mirbad.W001"]),
        ({"bind": "0.0.0.0", "hosts": "master.lan"}, []),
        ({"bind": "192.0.2.7"}, []),
        ({"bind": "2001:db8::7"}, []),
        ({"hosts": "*"}, ["mirbad.W002"]),
    ],
)
def test_a_setting_that_is_hardly_meant_is_named(monkeypatch, tmp_path, values, ids):
    assert found(monkeypatch, tmp_path, **values) == ids


def test_a_secrets_folder_that_others_can_read_is_named(monkeypatch, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets").chmod(0o755)
    assert found(monkeypatch, tmp_path) == ["mirbad.W003"]
