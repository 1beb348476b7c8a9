"""Which of a person's extra arguments and variables an engine may get."""

import re
from collections.abc import Iterable, Sequence

from agent.errors import AgentError
from agent.wire.errors import AgentCode

_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")

_OWN_VARIABLES = frozenset(
    {
        "PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP",
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "VLLM_API_KEY", "VLLM_PORT", "VLLM_HOST_IP", "LLAMA_API_KEY",
        "SIM_API_KEY",
    }
)  # fmt: skip
_OWN_PREFIXES = ("MIRBAD_", "LLAMA_ARG_", "VLLM_PLUGINS")


def rejected(why: str) -> AgentError:
    """The refusal of a launch whose spec cannot be accepted as it is."""
    return AgentError(AgentCode.SPEC_REJECTED, f"Launch spec rejected: {why}")


def _spelling(argument: str) -> str:
    """The option name in `argument` as argparse reads it: without its value, dots and underscores levelled."""
    name = argument.split("=", 1)[0]
    if name.startswith("--"):
        name = name.split(".", 1)[0].replace("_", "-")
    return name


def check_args(args: Iterable[str], denied: Iterable[str], *, abbreviations: bool) -> None:
    """AgentError SPEC_REJECTED when an argument is one of `denied`, in any spelling that the engine understands.

    With `abbreviations` the engine takes a unique beginning of an option for the option, as argparse does.
    """
    refused = tuple(denied)
    for argument in args:
        if "\x00" in argument:
            raise rejected("an argument holds a NUL character.")
        if argument == "--":
            raise rejected("the argument '--' is not allowed; give options only.")
        if not argument.startswith("-") or _is_number(argument):
            continue
        name = _spelling(argument)
        for flag in refused:
            if name == flag or (abbreviations and _argparse_reads(name, flag)):
                raise rejected(
                    f"the argument {name} is set by the agent or would read files of the node; remove it"
                    f"{'' if name == flag else f' or write it out if you did not mean {flag}'}."
                )


def _argparse_reads(name: str, flag: str) -> bool:
    """Whether argparse takes `name` for `flag`: a beginning of it, or a flag of one letter with its value attached."""
    attached = len(flag) == 2 and not name.startswith("--") and name.startswith(flag)
    return attached or (len(name) > 1 and flag.startswith(name))


def values_of(args: Sequence[str], flag: str) -> tuple[str, ...]:
    """Every value that a person's arguments may give to the long option `flag`, as argparse reads it."""
    found = []
    for at, argument in enumerate(args):
        if argument.startswith("--") and len(argument) > 2 and flag.startswith(_spelling(argument)):
            _, equals, value = argument.partition("=")
            found.append(value if equals else (args[at + 1] if at + 1 < len(args) else ""))
    return tuple(found)


def given(args: Iterable[str], *flags: str) -> bool:
    """Whether one of `flags` is among a person's arguments."""
    return any(argument.startswith("-") and _spelling(argument) in flags for argument in args)


def _is_number(argument: str) -> bool:
    try:
        float(argument)
    except ValueError:
        return False
    return True


def check_env(names: Iterable[str]) -> None:
    """AgentError SPEC_REJECTED when a variable's name is not one, or belongs to the agent."""
    for name in names:
        if not _ENV_NAME.match(name):
            raise rejected(f"'{name}' is not the name of an environment variable.")
        if name in _OWN_VARIABLES or name.startswith(_OWN_PREFIXES):
            raise rejected(f"the environment variable {name} is set by the agent; remove it.")
