"""Signed heads of the log in the database: made once a size, proved, pruned, exported, and what they find."""

import pytest

from agent.common import merkle
from audit import chain, checkpoints, log, retention, seal, verification
from audit.models import AuditLine, ChainState, Checkpoint, LogKey
from audit.queries import document
from mirbad.kernel import actor
from mirbad.kernel.errors import NotFound
from tests.audit import attacks
from tests.audit.attacks import verifier

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    settings = seal.settings().model_copy(update={"data": tmp_path})
    for module in (seal, verification, retention):
        monkeypatch.setattr(module, "settings", lambda: settings)
    return tmp_path / "audit"


def write(count):
    """Record and seal `count` lines more, and sign the head."""
    for number in range(count):
        log.record("job", actor.CONFIG, detail=f"line {number}")
    while seal.seal_once():
        pass
    return checkpoints.sign_once()


def test_a_head_is_signed_once_for_each_size_by_one_key():
    assert checkpoints.sign_once() is None
    first = write(3)
    assert (first.size, checkpoints.sign_once().pk) == (3, first.pk)
    second = write(4)
    heads = [checkpoints.head_of(one) for one in (first, second)]
    assert [head.size for head in heads] == [3, 7]
    assert {head.key for head in heads} == {LogKey.objects.get().public}
    assert heads[1].root == merkle.root([bytes.fromhex(peak) for peak in ChainState.objects.get().head_peaks]).hex()
    assert verification.verify().checkpoints == 2
    assert verification.verify().holds


def test_each_head_is_proved_to_continue_each_earlier_one():
    sizes = [write(count).size for count in (1, 2, 1, 4, 5, 3)]
    assert sizes == [1, 3, 4, 8, 13, 16]
    heads = {size: checkpoints.head_of(Checkpoint.objects.get(size=size)) for size in sizes}
    for old in range(1, 17):
        for new in sizes:
            if old >= new:
                continue
            proof = [bytes.fromhex(step) for step in checkpoints.consistency(old, Checkpoint.objects.get(size=new))]
            leaves = [chain.leaf(document(line)) for line in AuditLine.objects.filter(seq__lte=old).order_by("seq")]
            peaks = []
            for size, leaf in enumerate(leaves):
                merkle.grow(peaks, size, leaf)
            assert merkle.continues(old, merkle.root(peaks), new, bytes.fromhex(heads[new].root), proof), (old, new)


def test_an_export_is_checked_by_the_script_and_each_line_is_proved(folder):
    write(5), write(4)
    words = verifier.verify(verifier.read_lines(folder), checkpoints.exported(checkpoints.latest()))
    assert words.startswith("9 lines, unbroken")
    for seq in range(1, 10):
        assert verifier.verify_line(checkpoints.inclusion(seq)).startswith(f"Line {seq} is under the head of")
    with pytest.raises(NotFound):
        checkpoints.inclusion(10)


def test_after_retention_the_rest_is_proved_as_before(folder, monkeypatch):
    write(5), write(6)
    monkeypatch.setattr(retention, "BATCH", 7)
    AuditLine.objects.filter(seq__lte=4)
    retention._prune_rows(AuditLine.objects.order_by("-time").first().time.replace(year=2100))
    state = ChainState.objects.get()
    assert (state.base_seq, list(Checkpoint.objects.values_list("size", flat=True))) == (7, [11])
    assert verification.verify().holds
    newest = write(3)
    assert verification.verify().holds
    assert verifier.verify(verifier.read_lines(folder), checkpoints.exported(newest)).startswith("7 lines, unbroken")
    assert verifier.verify_line(checkpoints.inclusion(9)).startswith("Line 9 is")
    assert checkpoints.consistency(11, newest)
    assert checkpoints.consistency(5, newest) is None


def test_a_log_from_before_there_were_heads_gets_its_tree_from_its_lines():
    write(6)
    Checkpoint.objects.all().delete()
    LogKey.objects.all().delete()
    ChainState.objects.update(head_peaks=[])
    newest = write(2)
    assert newest.size == 8
    assert verification.verify().holds
    assert verifier.verify_line(checkpoints.inclusion(3)).startswith("Line 3 is")


def rewrite(rows):
    """Number and chain `rows` anew, as whoever has the database and the master's code would."""
    state, peaks = ChainState(head_digest=chain.GENESIS, base_digest=chain.GENESIS), []
    AuditLine.objects.update(seq=None)
    AuditLine.objects.exclude(pk__in=[row.pk for row in rows]).delete()
    for row in rows:
        seal.append(state, peaks, row)
        row.save()
    ChainState.objects.update(
        head_seq=state.head_seq, head_digest=state.head_digest, head_peaks=checkpoints.stored(peaks), written_seq=0
    )


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda rows: rows[:-2], "6 lines were signed, but the log ends at line 4"),
        (lambda rows: rows[1:], "6 lines were signed, but the log ends at line 5"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "the first 6 lines are not those signed at"),
        (lambda rows: [setattr(rows[3], "actor", "nobody"), *rows][1:], "the first 6 lines are not those signed at"),
    ],
    ids=["cut", "delete", "reorder", "edit"],
)
def test_a_log_that_was_chained_anew_contradicts_its_signed_head(folder, attack, words):
    write(6)
    rewrite(attack(list(AuditLine.objects.order_by("seq"))))
    for path in folder.iterdir():
        path.unlink()
    verdict = verification.verify()
    assert (verdict.in_database, verdict.in_files) == (None, None)
    assert words in verdict.in_heads.reason


def test_a_log_that_was_signed_anew_contradicts_the_head_that_a_node_holds(folder):
    seen = {"node pc-1": checkpoints.head_of(write(6))}
    assert verification.verify(seen).holds
    rows = list(AuditLine.objects.order_by("seq"))
    rows[2].detail = "all is well"
    rewrite(rows)
    for path in folder.iterdir():
        path.unlink()
    Checkpoint.objects.all().delete()
    checkpoints.sign_once()
    assert verification.verify().holds
    verdict = verification.verify(seen)
    assert "node pc-1: the first 6 lines are not those signed at" in verdict.in_heads.reason


def test_a_head_with_another_key_or_a_false_signature_is_found():
    newest = write(4)
    head = checkpoints.head_of(newest)
    other = attacks.Log(attacks.new_key()).head(0)
    assert "2 different keys" in verification.verify({"node a": other}).in_heads.reason
    false = head.model_copy(update={"signature": "0" * 128})
    assert "is not by its key" in verification.verify({"node a": false}).in_heads.reason
    newest.witnesses = {"pc-1": {"key": head.key, "signature": head.signature}}
    newest.save()
    assert "the signature of node pc-1" in verification.verify().in_heads.reason


def test_lines_name_the_person_with_role_and_address_where_there_is_one(folder):
    log.record("job", actor.admin("a session", "ada", "owner", "192.0.2.7"))
    log.record("job", actor.api("192.0.2.8", "backup (mbt_123…)", "viewer"))
    log.record("job", actor.api("192.0.2.9"))
    write(0)
    lines = verifier.read_lines(folder)
    who = [{name: line.get(name) for name in ("person", "role", "address")} for line in lines]
    assert who == [
        {"person": "ada", "role": "owner", "address": "192.0.2.7"},
        {"person": "backup (mbt_123…)", "role": "viewer", "address": "192.0.2.8"},
        {"person": None, "role": None, "address": None},
    ]
    assert "person" not in lines[2]
    AuditLine.objects.filter(seq=1).update(person="eve")
    assert verification.verify().in_database.seq == 1
