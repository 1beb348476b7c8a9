"""The recovery mode is decided by the setting and by files, before anything is made."""

import pytest

from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import read_settings

pytestmark = pytest.mark.unit


def given(folder, option="none"):
    return read_settings({"MIRBAD_DATA": str(folder), "MIRBAD_RECOVERY_MODE": option})


@pytest.mark.parametrize(
    ("option", "files", "on", "left"),
    [
        ("none", (), False, False),
        ("none", ("recovery",), True, False),
        ("fleet-restore", (), True, False),
        ("fleet-restore", ("recovery-installed.json",), False, True),
        ("none", ("recovery-installed.json",), False, False),
        # a marker that somebody made afterwards is a new request
        ("fleet-restore", ("recovery-installed.json", "recovery"), True, True),
    ],
)
def test_the_setting_ends_with_its_recovery_and_a_marker_counts_while_it_is_there(tmp_path, option, files, on, left):
    for name in files:
        (tmp_path / name).touch()
    chosen = given(tmp_path, option)
    assert (recovery_mode.is_on(chosen), recovery_mode.is_left_set(chosen)) == (on, left)


def test_a_folder_of_the_name_is_no_marker(tmp_path):
    (tmp_path / "recovery").mkdir()
    assert not recovery_mode.is_on(given(tmp_path))


def test_the_sentence_for_a_setting_that_is_ignored_names_the_folder(tmp_path):
    text = recovery_mode.left_set_text(given(tmp_path))
    assert text.startswith("MIRBAD_RECOVERY_MODE=fleet-restore is still set, but a fleet recovery already finished in ")
    assert str(tmp_path) in text
