"""The pure hash chain."""

import pytest

from audit.chain import GENESIS, first_break, link

pytestmark = pytest.mark.unit


def chained(count):
    previous, documents = GENESIS, []
    for seq in range(1, count + 1):
        document = {"seq": seq, "actor": "config", "action": "job", "detail": f"line {seq}"}
        document["hash"] = previous = link(previous, document)
        documents.append(document)
    return documents


def test_an_untouched_chain_holds_to_its_end():
    documents = chained(20)
    assert first_break(documents, 0, GENESIS) == (None, 20, documents[-1]["hash"])


def test_a_chain_can_be_followed_from_its_middle():
    documents = chained(20)
    assert first_break(documents[10:], 10, documents[9]["hash"])[0] is None


@pytest.mark.parametrize("name", ["actor", "action", "detail"])
def test_a_changed_field_is_found_at_its_line(name):
    documents = chained(20)
    documents[7][name] = "something else"
    broken, seq, _ = first_break(documents, 0, GENESIS)
    assert (broken.seq, seq) == (8, 7)


def test_a_line_taken_out_is_found():
    documents = chained(20)
    del documents[4]
    broken, _, _ = first_break(documents, 0, GENESIS)
    assert broken.seq == 5
    assert "missing" in broken.reason


def test_a_changed_line_with_a_fitting_hash_breaks_the_next_one():
    documents = chained(20)
    documents[4]["actor"] = "admin:000000000000"
    documents[4]["hash"] = link(documents[3]["hash"], documents[4])
    assert first_break(documents, 0, GENESIS)[0].seq == 6


def test_two_lines_that_change_places_are_found():
    documents = chained(20)
    documents[4], documents[5] = documents[5], documents[4]
    assert first_break(documents, 0, GENESIS)[0].seq == 5
