"""The texts that a page shows, one a line, with values that change from run to run masked."""

import re
from html.parser import HTMLParser

# Their text is part of the sentence around them.
_INLINE = {"b", "br", "code", "em", "small", "strong", "time"}
_SILENT = {"link", "meta", "path", "rect", "script", "style"}
_ATTRIBUTES = ("title", "aria-label", "placeholder", "alt", "hx-confirm")
_SPAN = r"\d+(?:\.\d+)? (?:ms|s|min|h|d)\b"
_MASKS = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\bop-[0-9a-f]{6,24}"), "<operation>"),
    (re.compile(r"\b(?:ssk|mbt)_[\w-]+…?"), "<secret>"),
    (re.compile(r"\b[0-9a-f]{16}\.[\w-]{43}"), "<token>"),
    (re.compile(r"\b[0-9a-f]{12,}\b|^[0-9a-f]{4}(?: [0-9a-f]{4})*$"), "<hex>"),
    (re.compile(r"\(\d+\)$|^\d+ (?=ci$)"), "<row> "),
    (re.compile(rf"just now|in {_SPAN}(?: {_SPAN})?|{_SPAN}(?: {_SPAN})?(?: ago)?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?)?(?: UTC|Z|\+00:00)?"), "<date>"),
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._text = ""
        self._silent = 0
        self._pre = 0

    def flush(self) -> None:
        text = " ".join(self._text.split())
        if text:
            self.lines.append(text)
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _INLINE:
            if tag == "br":
                self.flush()
        else:
            self.flush()
        if tag in ("script", "style"):
            self._silent += 1
        self._pre += tag == "pre"
        values = dict(attrs)
        for name in _ATTRIBUTES:
            if (value := values.get(name)) and not (tag == "time" and name == "title"):
                self.flush()
                self.lines.append(f"[{name}] {' '.join(value.split())}")

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            self.flush()
        if tag in ("script", "style"):
            self._silent -= 1
        self._pre -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        for number, line in enumerate(data.split("\n") if self._pre else [data]):
            if number:
                self.flush()
            self._text += line


def _masked(line: str) -> str:
    for pattern, instead in _MASKS:
        line = pattern.sub(instead, line)
    return line


def texts(markup: str) -> str:
    """Return the texts of `markup`, one a line: what is visible, and the attributes that a person reads or hears."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    reader.flush()
    lines = [_masked(line) for line in reader.lines]
    once = [line for number, line in enumerate(lines) if line != "<hex>" or lines[number - 1 : number] != [line]]
    return "\n".join(once) + "\n"


def main_part(markup: str) -> str:
    """Return what a full page has inside `<main>`; a fragment as it is."""
    found = re.search(r"<main\b.*?</main>", markup, re.DOTALL)
    return found.group(0) if found else markup
