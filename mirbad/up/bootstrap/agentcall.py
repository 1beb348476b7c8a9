"""Commands of this machine's own agent, run as processes: the master's code never imports them."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from agent.common.files import write_text
from mirbad.up import programs
from mirbad.up.errors import CannotStart
from mirbad.up.parent_death import scrub
from mirbad.up.programs import Layout

_SECONDS = 60


def configure(layout: Layout) -> None:
    """Write ``agent.json`` on the first run; later change only its port, all else is the owner's."""
    path = layout.agent_config
    image = layout.settings.engine_image
    wanted: dict[str, Any] = {
        "state_dir": str(layout.agent_state.relative_to(path.parent)),
        "models_root": "models",
        "bind": "127.0.0.1",
        "port": layout.settings.agent_port,
        "allow_tag_pulls": False,
        "approved_images": [image] if "@" in image else [],
    }
    try:
        present = json.loads(path.read_text())
    except FileNotFoundError:
        present = {}
    except ValueError as error:
        raise CannotStart(f"{path} is not valid JSON ({error}). Fix it, or remove it to create it again.") from error
    changed = {**wanted, **present, "port": layout.settings.agent_port}
    if changed != present:
        write_text(path, json.dumps(changed, indent=2) + "\n")


def status(layout: Layout, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the output of ``mirbad-agent status --json`` for this machine's agent. Raises CannotStart."""
    if not layout.agent_joined:
        return {"joined": False}
    answer: dict[str, Any] = json.loads(_run(layout, environ, "status", "--json"))
    return answer


def join(layout: Layout, environ: Mapping[str, str], token: str, *arguments: str) -> None:
    """Enroll this machine with `token`, passed by environment alone. Raises CannotStart with the agent's error."""
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
        raise CannotStart(f"This machine's agent failed at `{arguments[0]}`: {words}")
    return done.stdout
