"""Rules of values: how the value of an argument or variable must look so that it names no file and no code."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent.common import strict_json

Leaf: TypeAlias = Callable[[object], bool]
Shape: TypeAlias = Leaf | Mapping[str, "Shape"]

ANY_KEY = "*"
"""In a `Shape`: every key that has no line of its own."""

_WORD = r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_TEXT = 8192


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that one setting accepts. `says` follows "It accepts"; `shape` is of a JSON object's members.

    With `several` the engine reads every following value, with `optional` one or none; without `takes_value` the
    argument has a value behind "=" only.
    """

    says: str
    fits: Callable[[str], bool]
    takes_value: bool = True
    several: bool = False
    optional: bool = False
    shape: Shape | None = None


def pattern(says: str, text: str, *, several: bool = False) -> Rule:
    """Return the rule of values that match `text` as a whole."""
    found = re.compile(text, re.ASCII)
    return Rule(says, lambda value: found.fullmatch(value) is not None, several=several)


def choice(*words: str) -> Rule:
    """Return the rule of a few words."""
    return Rule(", ".join(words[:-1]) + f" or {words[-1]}" if words[1:] else words[0], frozenset(words).__contains__)


def json_object(shape: Shape, or_else: Rule | None = None) -> Rule:
    """Return the rule of a JSON object with members of `shape`, or of a value that `or_else` accepts."""
    says = "a JSON object whose members Mirbad knows, without paths" + (f", or {or_else.says}" if or_else else "")
    return Rule(says, lambda value: bool(or_else and or_else.fits(value)) or _is_object(value, shape), shape=shape)


def either(first: Rule, second: Rule) -> Rule:
    """Return the rule of values that one of two rules accepts."""
    return Rule(f"{first.says}, or {second.says}", lambda value: first.fits(value) or second.fits(value))


SWITCH = Rule("no value", lambda value: value.lower() in {"true", "false"}, takes_value=False)
NUMBER = pattern(
    "a number", r"-?\d{1,19}|\d{1,19}(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3})?|\d{1,19}(?:\.\d{1,9})?[kKmMgGtT]|auto|all"
)
# A separate rule: vLLM reads an argument with a hyphen and a dot as the member of another one.
SIGNED = pattern("a number", r"-?\d{1,19}(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3})?")
NUMBERS = pattern(
    "numbers with commas between them", r"-?\d{1,19}(?:\.\d{1,9})?(?:[,;:|/x-]\d{1,19}(?:\.\d{1,9})?){0,255}"
)
SEVERAL_NUMBERS = pattern("whole numbers", r"\d{1,19}(?:,\d{1,19}){0,255}", several=True)
ON_OFF = pattern("on, off or auto", r"(?i:on|off|auto|yes|no|true|false|0|1|-1)")
OPTIONAL_ON_OFF = replace(ON_OFF, optional=True)
WORD = pattern("one word of letters, digits, '_', '+' and '-'", _WORD)
WORDS = pattern(
    "words with commas between them", rf"[\^=]?{_WORD}(?:[:.]\d{{1,4}})?(?:[,;:]{_WORD}(?:[:.]\d{{1,4}})?){{0,127}}"
)
TEXT = Rule(
    "text that does not begin with '-'",
    lambda value: len(value) <= _MAX_TEXT and not value.startswith(("-", "@")) and "\0" not in value,
)
SECRET = pattern("a token without spaces", r"[A-Za-z0-9][A-Za-z0-9._~+=-]{0,1023}")


def is_number(value: object) -> bool:
    """Return whether `value` is a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_flag(value: object) -> bool:
    """Return whether `value` is true, false or null."""
    return value is None or isinstance(value, bool)


def is_word(value: object) -> bool:
    """Return whether `value` is a string of one word."""
    return isinstance(value, str) and WORD.fits(value)


def is_scalar(value: object) -> bool:
    """Return whether `value` is a number, a word, true, false or null."""
    return is_number(value) or is_flag(value) or is_word(value)


def is_numbers(value: object) -> bool:
    """Return whether `value` is a list of numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def one_of(*words: str) -> Leaf:
    """Return the leaf that accepts one of `words`."""
    return lambda value: isinstance(value, str) and value in words


def member(shape: Shape, path: str, text: str) -> bool:
    """Return whether `text` may be the member at `path` ("a.b") of an object with `shape`."""
    for key in path.split("."):
        if not isinstance(shape, Mapping) or _KEY.fullmatch(key) is None:
            return False
        found = shape.get(key, shape.get(ANY_KEY))
        if found is None:
            return False
        shape = found
    try:
        value = _parse(text)
    except strict_json.BadJson:
        value = text
    return _agrees(value, shape)


def _is_object(text: str, shape: Shape) -> bool:
    try:
        value = _parse(text)
    except strict_json.BadJson:
        return False
    return isinstance(value, dict) and _agrees(value, shape)


def _parse(text: str) -> object:
    if len(text) > _MAX_TEXT:
        raise strict_json.BadJson("too long")
    value: object = strict_json.parse(text.encode("utf-8", "surrogatepass"))
    return value


def _agrees(value: object, shape: Shape) -> bool:
    if not isinstance(shape, Mapping):
        return shape(value)
    if not isinstance(value, dict):
        return False
    for key, part in value.items():
        expected = shape.get(key, shape.get(ANY_KEY))
        if expected is None or _KEY.fullmatch(key) is None or not _agrees(part, expected):
            return False
    return True


def table(*lines: tuple[Rule, str]) -> dict[str, Rule]:
    """Return names and their rules; each line is a rule and the names that follow it."""
    return {name: rule for rule, names in lines for name in names.split()}
