"""Forms: the model is found however the bytes are split, and invalid forms are refused."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_app.gateway import form
from models_app.gateway.errors import GatewayError

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
        (part(b"model", b"m", file=b"m.txt") + END, "invalid_form"),
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
    with pytest.raises(GatewayError) as refused:
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
    with pytest.raises(GatewayError):
        form.boundary(sent)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_noise_is_refused_by_name_only(noise, pieces):
    with contextlib.suppress(GatewayError):
        assert read(b"--" + MARK + b"\r\n" + noise, [p for p in pieces if p <= len(noise) + 10])


def test_a_form_of_many_parts_costs_as_much_as_its_bytes_and_too_many_are_refused(monkeypatch):
    monkeypatch.setattr(form, "MAX_PARTS", 10**6)
    data = part(b"a", b"") * 20_000 + part(b"model", b"m") + END
    began = time.thread_time()
    assert read(data) == "m"
    assert time.thread_time() - began < 1  # the square of it took a minute
    monkeypatch.undo()
    with pytest.raises(GatewayError, match="more than 1000 parts"):
        read(data)
    assert read(part(b"a", b"") * (form.MAX_PARTS - 1) + part(b"model", b"m") + END) == "m"


def odd(disposition, *lines, value=b"other"):
    head = b"\r\n".join([b"Content-Disposition: " + disposition, *lines])
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (MARK, head, value)


MODEL = part(b"model", b"m")


@pytest.mark.parametrize(
    "data",
    [
        odd(b'form-data; name="a"; name="model"') + MODEL + END,
        odd(b"form-data; name=\"a\"; name*=utf-8''model") + MODEL + END,
        odd(b"form-data; name*=utf-8''model") + MODEL + END,
        odd(b'form-data; name="mod\\el"') + MODEL + END,
        odd(b'form-data; name="m%6fdel"') + MODEL + END,
        odd(b'form-data; name=" model"') + MODEL + END,
        odd(b'form-data; name="model\x00"') + MODEL + END,
        odd(b"form-data; name='model'") + MODEL + END,
        odd(b'attachment; name="model"') + MODEL + END,
        odd(b'form-data; filename="x"; name="model"') + MODEL + END,
        odd(b"form-data; name=\"model\"; filename*=utf-8''x") + MODEL + END,
        odd(b'form-data; name="file"; filename="a\\"; name=\\"model"') + MODEL + END,
        odd(b'form-data; name="a"', b'Content-Disposition: form-data; name="model"') + MODEL + END,
        odd(b'form-data; name="a"\nContent-Disposition: form-data; name="model"') + MODEL + END,
        odd(b'form-data; name="a"\rX: y') + MODEL + END,
        odd(b'form-data;\r\n name="model"') + MODEL + END,
        odd(b'form-data; name="model"', b"Content-Transfer-Encoding: base64", value=b"bQ==") + END,
        odd(b'form-data; name="model"', b"Content-Type: text/plain; charset=utf-16") + END,
        b"junk\r\n" + MODEL + END,
        b"--other\r\n" + MODEL + END,
        MODEL + END + MODEL + END,
        MODEL + END + b"x",
        part(b"a", b"x\n--%b\nContent-Disposition: form-data; name=model\n\nother" % MARK) + MODEL + END,
        part(b"a", b"x\r--%b\r\n" % MARK) + MODEL + END,
        part(b"a", b"--%b" % MARK) + MODEL + END,
        MODEL.replace(MARK + b"\r\n", MARK + b" \r\n") + END,
    ],
)
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_what_two_readers_could_read_in_two_ways_is_refused(data, step):
    with pytest.raises(GatewayError) as refused:
        read(data, range(step, len(data), step))
    assert refused.value.code == "invalid_form"


@pytest.mark.parametrize(
    "data",
    [
        odd(b"form-data; name=model", b"Content-Type: text/plain; charset=utf-8", value=b"m") + END,  # .NET
        odd(b'form-data; name="model"', b"Content-Type: text/plain; charset=UTF-8", b"Content-Length: 1", value=b"m")
        + END,
        MODEL + odd(b'form-data; name="file"; filename="C:\\a b\\x.wav"', b"Content-Type: audio/wav") + END,
        MODEL + odd(b"form-data; name=file; filename=x.wav; filename*=utf-8''x.wav") + END + b"\r\n",
        MODEL + odd('form-data; name="file"; filename="ä.wav"'.encode(), b"Content-Transfer-Encoding: binary") + END,
        MODEL + odd(b'form-data; name="timestamp_granularities[]"') * 2 + END,
    ],
)
def test_forms_of_usual_clients_are_read(data):
    for step in (1, 7, 100_000):
        assert read(data, range(step, len(data), step)) == "m"


@pytest.mark.parametrize(
    "sent",
    [
        b"multipart/form-data; boundary=a; boundary=b",
        b"multipart/form-data; boundary=a, multipart/form-data; boundary=b",
        b"multipart/form-data; boundary*0=a; boundary*1=b",
        b"multipart/form-data; boundary*=utf-8''a",
        b'multipart/form-data; boundary="a\\"b"',
        b"multipart/form-data-x; boundary=a",
        b'multipart/form-data; boundary="a',
    ],
)
def test_a_boundary_that_two_readers_could_read_in_two_ways_is_refused(sent):
    with pytest.raises(GatewayError):
        form.boundary(sent)
