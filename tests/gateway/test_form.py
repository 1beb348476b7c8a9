"""Forms: the model is found however the bytes are cut, and what is no form is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_app.gateway import form
from models_app.gateway.refusals import Refusal

pytestmark = pytest.mark.unit

MARK = b"----x7"


def part(name, value, *, file=None, head=b""):
    named = b'; filename="%b"' % file if file else b""
    return b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n' % (MARK, name, named, head, value)


END = b"--%b--\r\n" % MARK
FILE = part(b"file", b"\x00\r\n--almost\r\n------x\xff" * 40, file=b"a.wav", head=b"Content-Type: audio/wav\r\n")


def read(data, pieces=()):
    peek = form.FormPeek(MARK)
    at = 0
    for cut in [*sorted(pieces), len(data)]:
        peek.feed(data[at:cut])
        at = cut
    peek.finish()
    return peek.model


@given(st.lists(st.integers(0, len(FILE) + 100), max_size=12), st.booleans())
def test_the_model_is_found_before_or_behind_the_file_however_the_bytes_are_cut(pieces, first):
    parts = [part(b"model", "wéisper/v3".encode()), FILE]
    data = b"".join(parts if first else parts[::-1]) + END
    assert read(data, [cut for cut in pieces if cut <= len(data)]) == "wéisper/v3"


def test_the_model_is_known_before_the_file_has_come():
    peek = form.FormPeek(MARK)
    peek.feed(part(b"model", b"m") + FILE[:60])
    assert peek.model == "m"
    assert not peek.ended


def test_a_file_is_not_kept():
    peek = form.FormPeek(MARK)
    peek.feed(part(b"file", b"", file=b"a")[:-2])
    for _ in range(100):
        peek.feed(b"x" * 100_000)
    assert len(peek._rest) < 100


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FILE + END, "model_required"),
        (part(b"model", b"m", file=b"m.txt") + END, "model_required"),
        (END, "model_required"),
        (part(b"model", b"m"), "invalid_form"),
        (part(b"model", b"") + END, "invalid_form"),
        (part(b"model", b"\xff") + END, "invalid_form"),
        (part(b"model", b"m" * 2000) + END, "invalid_form"),
        (part(b"model", b"m") + part(b"model", b"n") + END, "invalid_form"),
        (b"--%bxx\r\n" % MARK, "invalid_form"),
        (b"--%b\r\nContent-Type: text/plain\r\n\r\nm\r\n" % MARK + END, "invalid_form"),
        (b"--%b\r\nX: %b" % (MARK, b"a" * 20_000), "invalid_form"),
        (b'{"model": "m"}', "invalid_form"),
        (b"", "invalid_form"),
    ],
)
def test_what_is_no_form_with_one_model_is_refused(data, code):
    with pytest.raises(Refusal) as refused:
        read(data)
    assert (refused.value.status, refused.value.code) == (400, code)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"application/json", None),
        (b"", None),
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
    ],
)
def test_a_boundary_is_read_from_the_type(sent, found):
    assert form.boundary(sent) == found


@pytest.mark.parametrize("sent", [b"multipart/form-data", b"multipart/form-data; boundary=" + b"a" * 71])
def test_a_form_without_a_usable_boundary_is_refused(sent):
    with pytest.raises(Refusal):
        form.boundary(sent)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_noise_is_refused_by_name_only(noise, pieces):
    with contextlib.suppress(Refusal):
        assert read(b"--" + MARK + b"\r\n" + noise, [p for p in pieces if p <= len(noise) + 10])
