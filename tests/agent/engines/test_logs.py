"""Reading an engine's log while it is written, cut and emptied."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import logs
from agent.logs import LogFile
from agent.running import kept_logs

pytestmark = pytest.mark.unit


def log_of(path: Path, text: str | bytes, **more: object) -> LogFile:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(data)
    return LogFile(path, **more)


def test_the_tail_ends_where_reading_on_begins(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a", "one\ntwo\nthree\n")
    tail = log.tail(2)
    assert (tail.lines, tail.truncated) == (("two", "three"), True)
    with log.path.open("a") as file:
        file.write("four\nfi")
    more = log.after(tail.next, 100)
    assert more.lines == ("four",)
    with log.path.open("a") as file:
        file.write("ve\n")
    assert log.after(more.next, 100).lines == ("five",)


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "none")
    assert log.tail(10).lines == ()
    assert log.after(0, 10).lines == ()
    assert log.after(10, 10).truncated


def test_a_reader_goes_on_after_the_file_was_rotated(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.log", "one\ntwo\n")
    place = log.tail(10).next
    assert log.rotate() == 8
    rotated = LogFile(log.path, base=8)
    assert (rotated.after(place, 10).lines, log.path.stat().st_size) == ((), 0)
    with log.path.open("a") as file:
        file.write("three\n")
    assert rotated.after(place, 10).lines == ("three",)
    # What was written before is in the older part: nothing is lost to a reader that comes late.
    late = rotated.after(4, 10)
    assert (late.lines, late.truncated, late.next) == (("two", "three"), False, 14)
    assert rotated.tail(3).lines == ("one", "two", "three")
    assert (rotated.last_line(), rotated.end()) == ("three", 14)


def test_a_second_rotation_replaces_the_older_part(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.log", "one\n")
    base = log.rotate()
    log.path.write_text("two\n")
    base += log.rotate()
    log.path.write_text("three\n")
    rotated = LogFile(log.path, base=base)
    assert rotated.tail(9).lines == ("two", "three")
    late = rotated.after(0, 9)
    assert (late.lines, late.truncated) == (("two", "three"), True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a~older.log"]


def test_the_disk_that_a_log_takes_is_bounded_however_much_arrived_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LIMIT_BYTES", 1000)
    log = log_of(tmp_path / "a.log", "".join(f"line {number}\n" for number in range(10_000)))
    base = log.rotate()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    assert LogFile(log.path, base=base).tail(1).lines == ("line 9999",)


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12), lines=st.integers(1, 5))
def test_every_line_is_read_once_across_rotations(
    pieces: list[tuple[int, bool]], lines: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, base, written, place, got = tmp_path_factory.mktemp("log") / "a.log", 0, 0, 0, list[str]()
    path.touch()
    for count, rotates in pieces:
        with path.open("a") as file:
            file.writelines(f"{number}\n" for number in range(written, written + count))
        written += count
        if rotates:
            base += LogFile(path, base).rotate()
        while (part := LogFile(path, base).after(place, lines)).next > place:
            got += part.lines
            place = part.next
    assert got == [str(number) for number in range(written)]


def run_of(folder: Path, text: str, **more: object) -> None:
    """One run that wrote `text`, after which the next one begins."""
    kept_logs.begin_run(log_of(folder / "i1.log", text, **more))


def kept(folder: Path, run: int) -> tuple[str, ...]:
    return LogFile(kept_logs.path_of(folder / "i1.log", run)).tail(10).lines


def test_the_logs_of_the_last_runs_are_kept_without_secrets_and_no_more(tmp_path: Path) -> None:
    for number in range(4):
        run_of(tmp_path, f"run {number}\nkey is verysecretkey!\n", secrets=("verysecretkey",))
    assert (kept(tmp_path, 1), kept(tmp_path, 2)) == (("run 3", "key is ***!"), ("run 2", "key is ***!"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i1~1.log", "i1~2.log"]
    kept_logs.remove_all(tmp_path / "i1.log")
    assert list(tmp_path.iterdir()) == []


def test_a_start_without_a_line_keeps_the_logs_of_the_runs_before(tmp_path: Path) -> None:
    run_of(tmp_path, "it died\n")
    run_of(tmp_path, "")
    assert kept(tmp_path, 1) == ("it died",)


def test_of_a_long_run_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEPT_BYTES", 100)
    run_of(tmp_path, "".join(f"line {number}\n" for number in range(1000)))
    found = kept(tmp_path, 1)
    assert found[-1] == "line 999"
    assert kept_logs.path_of(tmp_path / "i1.log", 1).stat().st_size <= 100


@pytest.mark.parametrize("killed_before", range(4))
def test_an_agent_killed_while_it_keeps_a_log_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: int
) -> None:
    run_of(tmp_path, "first\n")
    log, moves = log_of(tmp_path / "i1.log", "second\n"), 0

    def move(self: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves > killed_before:
            raise KeyboardInterrupt
        return real(self, target)

    real = Path.replace
    monkeypatch.setattr(Path, "replace", move)
    with contextlib.suppress(KeyboardInterrupt):
        kept_logs.begin_run(log)
    monkeypatch.undo()
    kept_logs.begin_run(log)
    assert (kept(tmp_path, 1), kept(tmp_path, 2)) == (("second",), ("first",))


def test_at_most_so_many_lines_are_given_and_the_rest_comes_next(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a", "".join(f"{number}\n" for number in range(10)))
    first = log.after(0, 3)
    assert first.lines == ("0", "1", "2")
    assert log.after(first.next, 3).lines == ("3", "4", "5")


def test_a_line_without_end_does_not_stop_the_reader(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a", "x" * (logs.SLICE_BYTES * 2 + 10))
    place, steps = 0, 0
    while (part := log.after(place, 10)).next > place:
        place, steps = part.next, steps + 1
        assert len(part.lines[0]) <= logs.LINE_CHARACTERS + 2
    assert steps == 2


def test_progress_bars_colours_and_secrets_are_cleaned(tmp_path: Path) -> None:
    log = log_of(
        tmp_path / "a",
        "load 1%\rload 50%\rload 100%\n\x1b[32mgreen\x1b[0m\nkey is verysecretkey!\ntoken hf_abcdefghijklmnop\n"
        "ssk_0123456789abcdef\npassword: hunter2hunter2hunter2\n",
        secrets=("verysecretkey",),
    )
    assert log.tail(10).lines == (
        "load 100%",
        "green",
        "key is ***!",
        "token ***",
        "***",
        "password: ***",
    )


def test_bytes_that_are_no_text_do_not_stop_the_reader(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a", b"\xff\xfe\x00broken\nfine\n")
    assert log.tail(10).lines[1] == "fine"


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), lines=st.integers(1, 5))
def test_reading_on_gives_every_whole_line_once(
    data: bytes, lines: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = log_of(tmp_path_factory.mktemp("log") / "a", data)
    got: list[str] = []
    place = 0
    while (part := log.after(place, lines)).next > place:
        assert len(part.lines) <= lines
        got += part.lines
        place = part.next
    whole = data[: data.rfind(b"\n") + 1]
    assert place == len(whole)
    assert len(got) == whole.count(b"\n")
