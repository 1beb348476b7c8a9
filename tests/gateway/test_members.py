"""Large JSON objects of every shape: the same members as a whole parse finds, in steps that cost little each."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models_app.gateway import body as bodies
from models_app.gateway import members
from models_app.gateway.errors import GatewayError

pytestmark = pytest.mark.unit

SIZE = 2_000_000
STEP_CPU_SECONDS = 0.02
"""A fifth of what the first version took for the cheapest of these shapes; a step takes a tenth of it."""


def filled(piece, *, between=b",", start=b'{"a":[', end=b'],"model":"m"}'):
    return start + between.join([piece] * (SIZE // (len(piece) + len(between)))) + end


SHAPES = {
    "arrays": filled(b"[]"),
    "objects": filled(b"{}"),
    "numbers": filled(b"1"),
    "strings": filled(b'""'),
    "strings in objects": filled(b'{"":""}'),
    "names": filled(b'"k":1', start=b'{"a":{', end=b'},"model":"m"}'),
    "deep": filled(b"[" * 190 + b"]" * 190),
    "saw": filled(b"[[[]],[[[],[]],[]],[]]"),
    "escapes": filled(b"\\n", between=b"", start=b'{"a":"', end=b'","model":"m"}'),
    "quotes": filled(b'\\"', between=b"", start=b'{"a":["', end=b'"],"model":"m"}'),
    "slashes": filled(b"\\\\", between=b"", start=b'{"a":["', end=b'"],"model":"m"}'),
    "one string": filled(b"x", between=b"", start=b'{"a":"', end=b'","model":"m"}'),
    "one nested string": filled("é".encode(), between=b"", start=b'{"a":["', end=b'"],"model":"m"}'),
    "space": filled(b" ", between=b"", start=b"", end=b'{"model":"m"}'),
    "a long name": filled(b"x", between=b"", start=b'{"', end=b'":1,"model":"m"}'),
    "members": b"{" + b",".join([b'"a":[' + b"[],\n" * 500 + b"[]]"] * 999) + b',"model":"m"}',
}
REFUSED = {
    "many members": filled(b'"k":1', start=b"{", end=b',"model":"m"}'),
    "open arrays": filled(b"[", between=b"", end=b""),
    "open objects": filled(b'{"a":', between=b"", start=b"", end=b""),
    "an open string": filled(b'\\"', between=b"", start=b'{"a":"', end=b""),
    "a slash at the end": filled(b"x", between=b"", start=b'{"a":["', end=b"\\"),
    "a long number": filled(b"9", between=b"", start=b'{"a":', end=b',"model":"m"}'),
    "space alone": b" " * SIZE,
    "space behind": b'{"model":"m"}' + b" " * SIZE + b"x",
    "an array": filled(b"[]", start=b"[", end=b"]"),
    "a long model": filled(b"m", between=b"", start=b'{"model":"', end=b'"}'),
    "long options": filled(b"1", start=b'{"model":"m","stream_options":{"a":[', end=b"]}}"),
}


def worst_step(body):
    """Return the result or error of `peek` and CPU seconds of its longest step; the better of two on a busy machine."""
    (found, one), (_, other) = once(body), once(body)
    return found, min(one, other)


def once(body):
    steps, worst = bodies.peek_in_steps(body), 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, max(worst, time.thread_time() - began)
        except GatewayError as error:
            return error, max(worst, time.thread_time() - began)
        worst = max(worst, time.thread_time() - began)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_body_of_megabytes_is_read_in_short_steps_whatever_its_shape(shape, kind):
    found, seconds = worst_step(kind(SHAPES[shape]))
    assert found.model == "m"
    assert seconds < STEP_CPU_SECONDS


@pytest.mark.parametrize("shape", REFUSED)
def test_what_is_refused_is_refused_in_short_steps(shape):
    error, seconds = worst_step(REFUSED[shape])
    assert error.status == 400
    assert seconds < STEP_CPU_SECONDS


@pytest.mark.parametrize("shape", [*SHAPES, *REFUSED])
def test_the_largest_body_that_is_parsed_at_once_costs_little_whatever_its_shape(shape):
    body = b'{"cut":[' + (SHAPES | REFUSED)[shape][: bodies.WHOLE_PARSE_BYTES - 100]
    found, seconds = worst_step(body)
    assert found.status == 400
    assert seconds < 2 * STEP_CPU_SECONDS


@pytest.mark.parametrize("filler", [0, bodies.WHOLE_PARSE_BYTES])
def test_more_than_a_thousand_members_are_too_many_in_a_small_body_and_in_a_large_one(filler):
    def body(count):
        return json.dumps({"model": "m", "f": "x" * filler, **{f"k{number}": 1 for number in range(count)}}).encode()

    assert bodies.peek(body(members.MAX_MEMBERS - 2)).model == "m"
    with pytest.raises(GatewayError, match="more than 1000 members"):
        bodies.peek(body(members.MAX_MEMBERS - 1))


@pytest.mark.parametrize("filler", [0, bodies.WHOLE_PARSE_BYTES])
@pytest.mark.parametrize(("levels", "accepted"), [(150, True), (1000, False)])
def test_deep_nesting_is_refused_in_a_small_body_and_in_a_large_one(filler, levels, accepted):
    body = b'{"f":"%b","a":%b%b,"model":"m"}' % (b"x" * filler, b"[" * levels, b"]" * levels)
    found, _ = worst_step(body)
    assert (found.model if accepted else found.code) == ("m" if accepted else "invalid_json")


texts = st.text(alphabet='\\"[]{},: aé\n', max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts | st.sampled_from(["model", "stream"]), values, max_size=5), st.integers(16, 80))
@settings(max_examples=300, deadline=None)
@example({"a": '\\"', "model": ["\\\\", {"b": "]"}]}, 17)
def test_steps_of_any_length_find_what_a_whole_parse_finds(sent, step):
    body = json.dumps(sent, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "STEP_BYTES", step)
        patch.setattr(members, "_FIRST_BYTES", step)
        patch.setattr(members, "_EXACT_BYTES", 2)
        places = members.run(members.find(body, frozenset(sent)))
    assert {name: json.loads(body[start:end]) for name, (start, end) in places.items()} == sent
