"""The check of a model's arguments and variables against the list of its engine."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.common.engine_settings import ENGINES, EngineSettings, rules
from agent.common.engine_settings.rules import Rule

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)

_SET_BY_THE_AGENT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "PYTHONUNBUFFERED"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    }
)
_SET_BY_THE_AGENT_PREFIX = "MIRBAD_"


@dataclass(frozen=True, slots=True)
class Refused:
    """A setting that a model may not have: a code, the place in the definition, the name, and a sentence.

    No value is repeated: it may be a secret.
    """

    code: str
    field: str
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """Settings that the owner of a machine allows beyond the list, with any value: names by engine."""

    args: Mapping[str, Collection[str]]
    env: Mapping[str, Collection[str]]

    def args_of(self, runtime: str) -> frozenset[str]:
        """Return the arguments for one engine, with hyphens."""
        return frozenset(map(full_name, self.args.get(runtime, ())))

    def env_of(self, runtime: str) -> frozenset[str]:
        """Return the variables for one engine."""
        return frozenset(self.env.get(runtime, ()))


NOTHING_MORE = Allowed({}, {})


def full_name(name: str) -> str:
    """Return the option `name` as the list has it: hyphens for underscores, except in short options."""
    return name.replace("_", "-") if name.startswith("--") else name


def refused_args(runtime: str, args: Sequence[str], allowed: Allowed = NOTHING_MORE) -> tuple[Refused, ...]:
    """Return the arguments that `runtime` may not have; a value that does not fit counts for its argument."""
    return tuple(_refused_args(ENGINES[runtime], args, allowed.args_of(runtime)))


def refused_env(
    runtime: str, env: Mapping[str, str | None], allowed: Allowed = NOTHING_MORE, *, field: str = "env"
) -> tuple[Refused, ...]:
    """Return the variables that `runtime` may not have. A value None is not known and not judged."""
    engine, more = ENGINES[runtime], allowed.env_of(runtime)
    found = (_refused_variable(engine, name, value, more) for name, value in env.items())
    return tuple(Refused(code, f"{field}.{name}", name, text) for code, name, text in filter(None, found))


def is_managed(runtime: str, name: str) -> bool:
    """Return whether the agent sets the argument or variable `name`, which nobody can allow."""
    engine = ENGINES[runtime]
    return full_name(name) in engine.managed or _sets(engine, name)


def _sets(engine: EngineSettings, name: str) -> bool:
    return name in engine.managed_variables | _SET_BY_THE_AGENT or name.startswith(_SET_BY_THE_AGENT_PREFIX)


def _refused_variable(
    engine: EngineSettings, name: str, value: str | None, more: frozenset[str]
) -> tuple[str, str, str] | None:
    if VARIABLE_NAME.fullmatch(name) is None:
        return "env_name_invalid", name, f"{name!r} is not a valid environment variable name."
    if _sets(engine, name):
        return (
            "env_name_reserved",
            name,
            f"{name} is reserved for Mirbad. Remove it; arguments and the placement decide instead.",
        )
    if name in more:
        return None
    rule = engine.variables.get(name)
    if rule is None and engine.open_variables is not None and engine.open_variables[0].fits(name):
        rule = engine.open_variables[1]
    if rule is None:
        text = (
            f"{name} is not among the environment variables that {engine.name} models may have. Remove it, or let the "
            "owner of the machine add it to allowed_env in agent.json."
        )
        return "env_name_refused", name, text
    if value is not None and not rule.fits(value):
        return "env_value_refused", name, f"{name} has a value that is not allowed. It accepts {rule.says}."
    return None


def _refused_args(engine: EngineSettings, args: Sequence[str], more: frozenset[str]) -> Iterator[Refused]:
    at = 0
    while at < len(args):
        argument = args[at]
        name, equals, value = _split(engine, argument)
        base = full_name(name.partition(".")[0] if engine.has_members else name)
        if base in more and base not in engine.managed:
            at += 1 if equals else 1 + _values_after(args, at)
            continue
        rule, (code, text) = _rule(engine, argument, name, base)
        if rule is None:
            yield Refused(code, f"args.{at}", name, text)
            at += 1 + (0 if equals else _values_after(args, at))
            continue
        values = [value] if equals else list(args[at + 1 : at + 1 + _taken(rule, args, at)])
        if not _accepts(rule, values):
            yield Refused("argument_value_refused", f"args.{at}", name, _bad_value(name, rule, values))
        at += 1 if equals else 1 + len(values)


def _split(engine: EngineSettings, argument: str) -> tuple[str, str, str]:
    """Return name, "=" and value of one argument; an engine that does not join them gets the whole as the name."""
    for short, rule in (engine.attached or {}).items():
        if argument.startswith(short) and len(argument) > len(short) and argument[len(short)] not in ".=":
            rest = argument[len(short) :]
            return (short, "=", rest) if rule.fits(rest) else (argument, "", "")
    return argument.partition("=") if engine.joins_values else (argument, "", "")


def _rule(engine: EngineSettings, argument: str, name: str, base: str) -> tuple[Rule | None, tuple[str, str]]:
    """Return the rule of an argument, or None with the code and the sentence of the refusal."""
    if not argument.startswith("-") or argument == "-" or _NUMBER.fullmatch(argument):
        text = f"The value {_short(argument)} follows no argument. Put an argument and its value on two lines."
        return None, ("argument_refused", text)
    if base in engine.managed:
        text = (
            f"Remove {name} from the arguments: the agent decides the engine's weights, address, key, names and GPUs."
        )
        return None, ("argument_managed", text)
    member = name.partition(".")[2] if engine.has_members else ""
    rule = engine.arguments.get(base)
    if rule is None and engine.negates and base.startswith("--no-"):
        positive = engine.arguments.get("--" + base.removeprefix("--no-"))
        rule = positive if positive is not None and not positive.takes_value else None
    if rule is not None and ("." in name and engine.has_members):
        rule = _of_member(rule, member)
    if rule is not None:
        return rule, ("", "")
    return None, ("argument_refused", _not_listed(engine, name, base))


def _of_member(rule: Rule, member: str) -> Rule | None:
    shape = rule.shape
    if shape is None:
        return None
    return Rule("a value that Mirbad knows, without paths", lambda value: rules.member(shape, member, value))


_INSTEAD = {
    "lora": "Adapters (LoRA) are not loaded beside a model: merge the adapter into its model and choose the result.",
    "mmproj": "Choose the projector in the model's settings (sources[].projector).",
}
"""Advice on an argument that is not listed, by a part of its name."""


def _not_listed(engine: EngineSettings, name: str, base: str) -> str:
    shown = _short(name)
    for part, instead in _INSTEAD.items():
        if part in base:
            return f"{shown} is not among the arguments that {engine.name} models may have. {instead}"
    full = [known for known in sorted(engine.arguments) if len(base) > 2 and known.startswith(base)]
    if len(full) == 1 and engine.joins_values:
        return f"Write {full[0]} in full instead of {shown}."
    if "=" in name and not engine.joins_values:
        return f"Put {_short(name.partition('=')[0])} and its value on two lines; {engine.name} does not read '='."
    return (
        f"{shown} is not among the arguments that {engine.name} models may have: it may read files or load code on the "
        "node. Remove it, or let the owner of the machine add it to allowed_args in agent.json."
    )


def _taken(rule: Rule, args: Sequence[str], at: int) -> int:
    if not rule.takes_value:
        return 0
    if rule.several:
        return _values_after(args, at)
    if rule.optional:
        return int(at + 1 < len(args) and rule.fits(args[at + 1]))
    return min(1, len(args) - at - 1)


def _values_after(args: Sequence[str], at: int) -> int:
    """Return the number of arguments after `at` that are no options."""
    count = 0
    for argument in args[at + 1 :]:
        if argument.startswith("-") and argument != "-" and not _NUMBER.fullmatch(argument):
            break
        count += 1
    return count


def _accepts(rule: Rule, values: Sequence[str]) -> bool:
    needs_one = rule.takes_value and not rule.optional
    return all(map(rule.fits, values)) and (bool(values) or not needs_one)


def _bad_value(name: str, rule: Rule, values: Sequence[str]) -> str:
    begin = f"{name} has a value that is not allowed" if values else f"{name} needs a value"
    return f"{begin}. It accepts {rule.says}."


def _short(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "…") if not text.startswith("-") else text[:64]
