"""A reader of ``config.json``: text that may not be JSON, numbers of the wrong type, fields one level down."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Keys of the part that generates text in a model that also sees or hears. Never a vision or audio part.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model_config", "decoder")
_OUTER_PARTS = ("thinker_config", "model_config")
LARGEST = 2**53
"""The exclusive limit of whole numbers in a configuration."""


class BadModelConfig(Exception):
    """The text is no configuration; the message is a sentence."""


@dataclass
class Document:
    """Fields of the text part, then of the whole, then of `defaults`. Values read are recorded with their place."""

    whole: Mapping[str, Any]
    text: Mapping[str, Any]
    place: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def find(self, *names: str) -> tuple[Any, str]:
        """Return the first of `names` that has a value, and its place in the document; (None, "") without one."""
        layers = [(self.text, f"config.json {self.place}".strip())]
        if self.place:
            layers.append((self.whole, "config.json"))
        layers.append((self.defaults, "default of this kind of model"))
        for values, source in layers:
            for name in names:
                value = values.get(name)
                if value is not None:
                    return value, f"{source}: {name}" if values is not self.defaults else source
        return None, ""

    def whole_number(self, *names: str) -> tuple[int | None, str]:
        """Return `find` when the value is a whole number from 0 on."""
        for name in names:
            value, source = self.find(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if 0 <= value < LARGEST and value == int(value):
                return int(value), source
        return None, ""

    def number(self, *names: str) -> int | None:
        """Return `whole_number` without its source."""
        return self.whole_number(*names)[0]

    def words(self, name: str) -> str:
        """Return a text, empty for any other type."""
        value, _ = self.find(name)
        return value if isinstance(value, str) else ""

    def part(self, name: str) -> Mapping[str, Any]:
        """Return a nested object, empty for any other type."""
        value, _ = self.find(name)
        return value if isinstance(value, dict) else {}

    def listed(self, name: str) -> list[Any] | None:
        """Return a list, None for any other type."""
        value, _ = self.find(name)
        return value if isinstance(value, list) else None


def parse(text: str) -> Document:
    """Parse `text`. Raises BadModelConfig. `Infinity` and `NaN`, which some writers print, count as absent."""
    try:
        whole: Any = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError:
        raise BadModelConfig("config.json is nested too deeply.") from None
    except ValueError:
        raise BadModelConfig("config.json is not JSON.") from None
    if not isinstance(whole, dict):
        raise BadModelConfig("config.json is not a JSON object.")
    outer, at = whole, ""
    for name in _OUTER_PARTS:
        if isinstance(whole.get(name), dict) and "num_hidden_layers" not in whole:
            outer, at = whole[name], f"{name}."
            break
    for name in _TEXT_PARTS:
        if isinstance(outer.get(name), dict) and outer[name]:
            return Document(whole, outer[name], f"{at}{name}")
    return Document(whole, outer, at.rstrip("."))


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
