"""The words of docs/GLOSSARY.md hold: docstrings that begin as English does, one class a name, no house word again."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, functions, modules, name, tree

ASKING = {"what", "whether", "who", "whose", "whom", "how", "where", "when", "which", "why"}
SEVERAL = {"Command", "Meta", "Migration"}
"""Class names that Django gives to many classes."""

# Words of an identifier that do not return, and the identifiers in which they are the field's own word.
HOUSE_WORDS = {
    *("bell", "bells", "ring", "rings", "rung", "lane", "lanes", "wish", "wishes", "wanted", "seat", "seats"),
    *("visit", "visits", "visitor", "familiar", "yard", "keeper", "meeting", "meetings", "pulse", "beat", "beats"),
    *("room", "rooms", "telling", "told", "said", "stray", "strays", "leftover", "leftovers", "hint", "hints"),
    *("tether", "tethered", "enrol", "enrolment", "seen"),
}
OWN_WORDS = {"lanes", "_lanes", "beat", "_beat_is_ready"}
"""Lanes of PCIe, and Celery's beat."""

PROSE = {
    "bell, ring": r"bells?|ring(?:s|ing)?(?! buffer)|rang|rung",
    "lane": r"lane|concurrency lanes?",
    "wish, wanted": r"wish(?:es|ed)?|wanted",
    "seat": r"seats?",
    "visit": r"visits?|visitors?",
    "familiar": r"familiar",
    "yard, keeper": r"yards?|keepers?",
    "meeting": r"meetings?",
    "pulse, beat": r"pulses?|beats",
    "room": r"rooms?",
    "telling, told, said": r"telling|told(?! apart| from)|said",
    "stray, leftover": r"strays?|leftovers?(?= engine| instance)",
    "hint": r"hints?",
    "tether": r"tether(?:s|ed)?",
    "enrol": r"enrol|enrols|enrolment",
    "stands on": r"stands? on|stood on",
}
_PROSE = {words: re.compile(rf"(?i)(?<![\w-])(?:{pattern})(?![\w-])") for words, pattern in PROSE.items()}


def _named(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names that `path` gives to modules, classes, functions and arguments, with their lines."""
    yield 1, path.parent.name if path.name == "__init__.py" else path.stem
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            yield from ((argument.lineno, argument.arg) for argument in given)


def _words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def _every_docstring(parsed: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of modules, classes, functions and values with their lines."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                match part:
                    case ast.Expr(ast.Constant(str(text))):
                        yield part.lineno, text.strip()


def _asking(parsed: ast.Module) -> list[tuple[int, str]]:
    """Return the docstrings that begin with a word of `ASKING`, with their lines."""
    first = re.compile(rf"(?i)[^a-z]*(?:{'|'.join(sorted(ASKING))})(?![a-z])")
    return [(line, text) for line, text in _every_docstring(parsed) if first.match(text)]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of `path` with their lines."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def _shown() -> Iterator[tuple[str, str]]:
    """Yield the text of each line of each template, without tags and expressions."""
    for path in sorted((ROOT / "templates").rglob("*.html")):
        text = path.read_text()
        for number, line in enumerate(re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}|<[^>]*>", " ", text).splitlines(), 1):
            yield f"{name(path)}:{number}", line


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [path for folder in ("deploy", "tests") for path in (ROOT / folder).rglob("*.py")]
    asking = [
        f"{name(path)}:{line} {text.splitlines()[0][:60]}"
        for path in (*modules(), *sorted(found))
        if ".cache" not in path.parts
        for line, text in _asking(tree(path))
    ]
    assert not asking, f"begin with a verb (a function) or a noun (a value): {asking}"


@pytest.mark.parametrize("word", sorted(ASKING))
@pytest.mark.parametrize(
    "source",
    [
        '"""{} it is."""',
        'class A:\n    """{} it is."""',
        'class A:\n    a = 1\n    """{} it is."""',
        'class A:\n    async def b(self):\n        """{} it is."""',
        'def a():\n    def b():\n        """\n        {} it is.\n        """',
        'a: int = 1\n"""`{}`, it is."""',
    ],
    ids=["module", "class", "attribute", "method", "nested function", "value"],
)
def test_a_docstring_that_begins_with_a_question_is_found(source: str, word: str) -> None:
    assert _asking(ast.parse(source.format(word.capitalize())))
    assert _asking(ast.parse(source.format(word)))
    assert not _asking(ast.parse(source.format(f"Return {word}"))), "it begins with a verb"
    assert not _asking(ast.parse(source.format(f"{word}ever"))), "it begins with another word"


def test_no_class_name_stands_for_two_classes() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and node.name not in SEVERAL:
                places[node.name].append(f"{name(path)}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"name each after its domain: {twice}"


def test_no_house_word_names_anything() -> None:
    found = [
        f"{name(path)}:{line} {identifier}"
        for path in modules()
        for line, identifier in _named(path)
        if _words(identifier) & HOUSE_WORDS and identifier not in OWN_WORDS
    ]
    assert not found, f"docs/GLOSSARY.md has the term: {found}"


def test_no_house_word_is_told_to_a_reader() -> None:
    # In backticks stands a name, which another check reads: of a column or a wire message it may be an old one.
    texts = [
        (f"{name(path)}:{line}", re.sub(r"`+[^`]*`+", " ", text))
        for path in modules()
        for line, text in _docstrings(path)
    ]
    found = [
        f"{place} {words}: {match.group()}"
        for place, text in [*texts, *_shown()]
        for words, pattern in _PROSE.items()
        if (match := pattern.search(text))
    ]
    assert not found, f"docs/GLOSSARY.md has the term: {found}"


def test_functions_are_found() -> None:
    assert sum(1 for path in modules() for _ in functions(path)) > 1000, "the checks above read something"
