"""Each code of the admin API is in the guide, with what to do about it.

After a change of codes, renew the page and read the difference:

    MIRBAD_TEST_RENEW_TEXTS=1 .venv/bin/python -m pytest tests/architecture/test_api_codes.py && git diff docs
"""

import ast
import os
import re
from collections.abc import Iterator

from tests.architecture import api_codes, source
from tests.architecture.api_fixes import FIXES


def test_every_code_has_a_line_with_what_to_do_and_no_line_is_left_over() -> None:
    codes = set(api_codes.collect())
    assert {code for code in codes if not FIXES.get(code)} == set()
    assert set(FIXES) - codes == set()


def test_no_code_is_passed_to_an_error_that_cannot_be_read_from_the_source() -> None:
    assert api_codes.passed_on() == api_codes.PASSED_ON


def test_what_to_do_is_a_sentence() -> None:
    assert [
        code for code, text in FIXES.items() if not (text[0].isupper() and text.endswith((".", "`."))) or "|" in text
    ] == []


def test_the_page_is_the_one_that_the_source_makes() -> None:
    if os.environ.get("MIRBAD_TEST_RENEW_TEXTS"):
        api_codes.PAGE.write_text(api_codes.page())
    assert api_codes.PAGE.read_text() == api_codes.page()


_STARTS_WITH_CODE = re.compile(r"([a-z]+(?:_[a-z]+)+)(?::| - | \u2013 )")


def _messages(parsed: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the beginning of every text of a module, with the values of its constants put in."""
    constants = {
        target.id: node.value.value
        for node in parsed.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(parsed):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (_part(part, constants) for part in node.values)
            yield node.lineno, "".join(parts)


def _part(part: ast.expr, constants: dict[str, object]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Name):
        return str(constants.get(value.id, "?"))
    return "some_code" if isinstance(value, ast.Attribute) and value.attr in ("code", "reason_code") else "?"


def _begins_with_code(text: str) -> bool:
    found = _STARTS_WITH_CODE.match(text)
    return found is not None and (found[1] in FIXES or found[1] == "some_code")


def test_no_message_begins_with_its_code() -> None:
    found = [
        f"{source.name(path)}:{line}: {text[:60]!r}"
        for path in source.modules()
        for line, text in _messages(source.tree(path))
        if _begins_with_code(text)
    ]
    assert found == []


def test_a_message_that_begins_with_its_code_is_found() -> None:
    texts = ('A = "placed_gpu_missing"\nf"{A}: model"', 'f"{error.code}: {x}"', '"placed_gpu_missing: model"')
    for text in texts:
        assert any(_begins_with_code(message) for _, message in _messages(ast.parse(text)))
    assert not any(_begins_with_code(message) for _, message in _messages(ast.parse('f"{A}: x"; "other_word: x"')))
