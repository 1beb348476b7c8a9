"""Reading an engine's log while it is written, cut and emptied."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import logs
from agent.logs import LogFile

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


def test_a_reader_goes_on_after_the_file_was_emptied(tmp_path: Path) -> None:
    log = log_of(tmp_path / "a", "one\ntwo\n")
    place = log.tail(10).next
    log.empty()
    emptied = LogFile(log.path, base=8)
    assert emptied.after(place, 10).lines == ()
    with log.path.open("a") as file:
        file.write("three\n")
    assert emptied.after(place, 10).lines == ("three",)
    late = emptied.after(3, 10)
    assert (late.lines, late.truncated) == (("three",), True)


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
        "key is [redacted]!",
        "token hf_[redacted]",
        "ssk_[redacted]",
        "password: [redacted]",
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
