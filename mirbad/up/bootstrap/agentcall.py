"""Commands of this machine's own agent, run as the processes they are: the master's code never imports them."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from mirbad.up import programs
from mirbad.up.errors import CannotStart
from mirbad.up.folder import write_private
from mirbad.up.programs import Layout
from mirbad.up.tether import scrub

_SECONDS = 60


def configure(layout: Layout) -> None:
    """Write ``agent.json`` on the first run; later only its port follows the setting, all else is the owner's."""
    path = layout.agent_config
    wanted: dict[str, Any] = {
        "state_dir": str(layout.agent_state.relative_to(path.parent)),
        "models_root": str(layout.models_root.relative_to(path.parent)),
        "bind": "127.0.0.1",
        "port": layout.settings.agent_port,
        "allow_tag_pulls": True,
    }
    try:
        present = json.loads(path.read_text())
    except FileNotFoundError:
        present = {}
    except ValueError as error:
        raise CannotStart(f"{path} is not valid JSON ({error}). Mend it, or remove it to have it made anew.") from error
    changed = {**wanted, **present, "port": layout.settings.agent_port}
    if changed != present:
        write_private(path, json.dumps(changed, indent=2) + "\n")


def status(layout: Layout, environ: Mapping[str, str]) -> dict[str, Any]:
    """What ``mirbad-agent status --json`` says of this machine's agent. Raises CannotStart."""
    if not layout.agent_joined:
        return {"joined": False}
    answer: dict[str, Any] = json.loads(_run(layout, environ, "status", "--json"))
    return answer


def join(layout: Layout, environ: Mapping[str, str], token: str, *arguments: str) -> None:
    """Enroll this machine with `token`, which goes by environment alone. Raises CannotStart with the agent's words."""
    port = str(layout.settings.agent_port)
    _run(layout, {**environ, "MIRBAD_JOIN_TOKEN": token}, "join", "--address", "127.0.0.1", "--port", port, *arguments)


def _run(layout: Layout, environ: Mapping[str, str], *arguments: str) -> str:
    token = {name: text for name, text in environ.items() if name == "MIRBAD_JOIN_TOKEN"}
    done = subprocess.run(  # noqa: S603  our own interpreter and module
        programs.agent(layout, *arguments),
        cwd=layout.root,
        env={**scrub(dict(environ)), **token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise CannotStart(f"The agent of this machine said at `{arguments[0]}`: {words}")
    return done.stdout
