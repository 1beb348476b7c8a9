"""Rules of the house that a linter does not know."""

import ast
import re
import subprocess

from tests.architecture.source import ROOT, modules, name, tree

CLOCKS = {"mirbad/kernel/clock.py", "agent/clock.py"}
WALL_CLOCK = {("datetime", "now"), ("datetime", "utcnow"), ("timezone", "now"), ("time", "time")}
# `ids` takes milliseconds into an id that sorts; TLS libraries are asked for their own notion of time.
# The simulated engine is a script of its own: in a container it is all there is of the agent.
CLOCK_EXCEPTIONS = {"mirbad/kernel/ids.py", "agent/runtimes/sim_engine.py"}


def test_only_the_clock_reads_the_time() -> None:
    readers = [
        f"{name(path)}:{call.lineno}"
        for path in modules()
        if name(path) not in CLOCKS | CLOCK_EXCEPTIONS
        for call in ast.walk(tree(path))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and (call.func.value.id, call.func.attr) in WALL_CLOCK
    ]
    assert not readers, f"use clock.now(): {readers}"


def test_every_module_says_what_it_is() -> None:
    silent = [name(path) for path in modules() if path.read_text().strip() and not ast.get_docstring(tree(path))]
    assert not silent


def test_a_broad_except_logs_its_traceback() -> None:
    quiet = []
    for path in modules():
        for handler in ast.walk(tree(path)):
            if not isinstance(handler, ast.ExceptHandler):
                continue
            caught = handler.type
            if caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"}):
                text = ast.unparse(handler)
                if "exception(" not in text and "raise" not in text and "exc_info" not in text:
                    quiet.append(f"{name(path)}:{handler.lineno}")
    assert not quiet, f"name what you catch, or log it with logger.exception: {quiet}"


def test_no_wait_loses_a_cancellation() -> None:
    # On Python 3.11 asyncio.wait_for may swallow that its caller is cancelled; asyncio.timeout does not.
    waits = [
        f"{name(path)}:{call.lineno}"
        for path in modules()
        for call in ast.walk(tree(path))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "asyncio.wait_for"
    ]
    assert not waits, f"use `async with asyncio.timeout(…)`: {waits}"


def test_there_are_no_modules_of_mixed_content() -> None:
    mixed = {"utils.py", "helpers.py", "services.py", "managers.py", "misc.py", "common.py"}
    assert not [name(path) for path in modules() if path.name in mixed]


def test_each_noqa_names_its_rule_and_its_reason() -> None:
    bare = [
        f"{name(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "# noqa" in line and not re.search(r"# noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)*( -)? +\S", line)
    ]
    assert not bare, f"write `# noqa: RULE  the reason`: {bare}"


def test_each_ignored_type_error_names_its_code() -> None:
    bare = [
        f"{name(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "type: ignore" in line and "type: ignore[" not in line
    ]
    assert not bare


def _tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return listing.stdout.splitlines()


def test_no_file_names_a_registry_host_or_a_path_of_the_machine() -> None:
    # The needles are put together here so that this file does not hold them itself.
    needles = ["index" + "-url http", "pypi" + ".org", "files.python" + "hosted", "/wo" + "rk/", "registry.npm" + "js"]
    found = []
    for file in _tracked():
        path = ROOT / file
        if path.suffix in {".png", ".ico", ".woff2"} or not path.is_file() or path == ROOT / __file__:
            continue
        text = path.read_text(errors="replace")
        found += [f"{file}: {needle}" for needle in needles if needle in text]
    assert not found


def test_every_locked_requirement_has_hashes() -> None:
    locks = list((ROOT / "requirements").glob("*.txt"))
    assert len(locks) == 4
    for lock in locks:
        text = lock.read_text()
        pins = re.findall(r"^[A-Za-z0-9_.\-\[\]]+==[^\s\\]+", text, re.MULTILINE)
        blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
        assert pins, lock.name
        assert all("--hash=sha256:" in block for block in blocks if "==" in block.splitlines()[0]), lock.name


def test_migrations_have_names() -> None:
    files = [*ROOT.glob("*/migrations/0*.py"), *ROOT.glob("mirbad/*/migrations/0*.py")]
    assert files
    assert not [str(path) for path in files if re.search(r"_auto_\d", path.name)]
