"""Names and values of engine arguments, as engines read them. The list of allowed ones is `engine_settings`."""

from collections.abc import Iterator, Sequence

_RUNS_CODE = "vllm"


def runs_code(runtime: str, args: Sequence[str]) -> bool:
    """Return whether `args` let the engine run Python that is shipped with the weights, as pickles do."""
    return runtime == _RUNS_CODE and bool(values_of(args, "--trust-remote-code"))


def spelling(argument: str) -> str:
    """Return the option name in `argument` as engines read it: without value and member, underscores as hyphens."""
    name = argument.split("=", 1)[0]
    if len(name) > 1:
        name = name.split(".", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def values_of(args: Sequence[str], flag: str) -> tuple[str, ...]:
    """Return every value that `args` may give to the long option `flag`, as argparse reads it."""
    return tuple(_values(args, flag))


def _values(args: Sequence[str], flag: str) -> Iterator[str]:
    for at, argument in enumerate(args):
        if argument.startswith("--") and len(argument) > 2 and flag.startswith(spelling(argument)):
            _, equals, value = argument.partition("=")
            yield value if equals else (args[at + 1] if at + 1 < len(args) else "")
