"""The commands of ``mirbad-agent``. Exit 0 is success, 1 a failure with its reason, 2 wrong usage."""

import argparse
import asyncio
import getpass
import json
import os
import platform
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from agent import __version__, witness_status
from agent.config import DEFAULT_CONFIG, AgentConfig, BadAgentConfig, read_config
from agent.enroll import JoinFailed, JoinRequest, existing, join
from agent.fabrics import BadFabric, Fabric, parse, resolve
from agent.fence import BrokenFence, held_claim
from agent.identity import AgentIdentityBroken, Identity, IdentityStore, MissingIdentity, in_groups
from agent.server import logs
from agent.state import Locked, ensure_private_dir, exclusive, is_locked
from agent.telemetry.fabrics import capabilities as fabric_capabilities
from agent.telemetry.fabrics import keep
from agent.wire.capability import Capabilities
from agent.wire.enroll import GpuSummary, MachineSummary

TOKEN_VARIABLE = "MIRBAD_JOIN_TOKEN"  # noqa: S105  the name of a variable, not a token
_MACHINE_SECONDS = 20.0


class CommandFailed(Exception):
    """The command failed; the text is for the person at the terminal."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _complain(line: str) -> None:
    sys.stderr.write(f"mirbad-agent: {line}\n")


class _RefuseToken(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(
            f"a token on the command line is visible to others. Set {TOKEN_VARIABLE}, or enter it at the prompt"
        )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="mirbad-agent", description="The agent of a Mirbad node.")
    parser.add_argument("--version", action="version", version=f"mirbad-agent {__version__}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, help=f"the agent's configuration (default {DEFAULT_CONFIG})")
    shared.add_argument("--state-dir", type=Path, help="folder for identity and records; overrides agent.json")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{join,serve,status,accept-root,stop-all}")

    verb = verbs.add_parser("join", parents=[shared], help="join a master, or re-pair with it")
    verb.add_argument("--enroll-url", required=True, help="https://master:8443")
    verb.add_argument("--ca-hash", required=True, help="sha256:… of the master's CA; separate several by commas")
    verb.add_argument("--node-id", required=True)
    verb.add_argument("--address", help="address where the master connects; default: the address of the join")
    verb.add_argument("--port", type=int, help="port of the agent; overrides agent.json")
    verb.add_argument("--rekey", action="store_true", help="replace the key of a known node")
    verb.add_argument("--node-uid", help="with --rekey, after the state folder was lost")
    verb.add_argument(
        "--fabric",
        action="append",
        default=[],
        metavar="NAME[:ADAPTER,…]",
        help="a fast network that this machine shares with other nodes, such as ib-b or ib-b:mlx5_2,mlx5_3; may repeat",
    )
    verb.add_argument("--token", action=_RefuseToken, help=argparse.SUPPRESS)
    verb.set_defaults(run=_join)

    verb = verbs.add_parser("serve", parents=[shared], help="run engines and serve the master")
    verb.set_defaults(run=_serve)

    verb = verbs.add_parser("status", parents=[shared], help="show the state of this machine's agent")
    verb.add_argument("--json", action="store_true", dest="as_json")
    verb.set_defaults(run=_status)

    verb = verbs.add_parser("accept-root", parents=[shared], help="use the models root as it is now, after it changed")
    verb.set_defaults(run=_accept_root)

    verb = verbs.add_parser("stop-all", parents=[shared], help="stop all engines after the agent has stopped")
    verb.add_argument("--grace", type=float, default=10.0, help="seconds before an engine is killed (default 10)")
    verb.set_defaults(run=_stop_all)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        config = _config(arguments)
        if arguments.verb == "serve":
            logs.configure(config.log_level)
        else:
            logs.configure("warning", for_a_person=True)
        return int(arguments.run(arguments, config))
    except CommandFailed as error:
        _complain(str(error))
        return error.code
    except (JoinFailed, MissingIdentity, AgentIdentityBroken, BrokenFence) as error:
        _complain(str(error))
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 1


def _config(arguments: argparse.Namespace) -> AgentConfig:
    path: Path = arguments.config or DEFAULT_CONFIG
    if arguments.config is not None and not path.is_file():
        raise CommandFailed(f"configuration file {path} not found", 2)
    try:
        config = read_config(path)
    except BadAgentConfig as error:
        raise CommandFailed(str(error), 2) from error
    if arguments.state_dir is not None:
        config = config.model_copy(update={"state_dir": arguments.state_dir.absolute()})
    if config.log_level.lower() not in {"debug", "info", "warning", "error"}:
        raise CommandFailed(f"{path}: log_level must be debug, info, warning or error", 2)
    return config


def _already(state: Path, options: JoinRequest) -> int | None:
    """Report a join that was done before, and return the exit code; None when it must be made."""
    store = IdentityStore(state)
    uid = _uid_of(store)
    claimed = uid is not None and held_claim(state, uid) is not None
    identity = existing(store, options, claimed=claimed)
    if identity is None:
        return None
    _say(f"This machine is already node {identity.node_id} of that master. Nothing was changed.")
    _say_fingerprint(identity)
    if not claimed:
        _say("It waits for approval on the master's Nodes page. If it was rejected there, join with a new token.")
    return 0


def _uid_of(store: IdentityStore) -> str | None:
    try:
        identity = store.load_if_any()
    except AgentIdentityBroken:
        return None
    return identity.node_uid if identity else None


def _token() -> str:
    if not sys.stdin.isatty():
        raise CommandFailed(f"set the join token in {TOKEN_VARIABLE}, or run this on a terminal", 2)
    if not (token := "".join(getpass.getpass("Join token: ").split())):
        raise CommandFailed("the join token is empty", 2)
    return token


def _fabrics(statements: Sequence[str], config: AgentConfig) -> tuple[Fabric, ...]:
    """Return the fabrics of the command with their adapters, before anything is sent or written."""
    if statements and config.fabrics:
        raise CommandFailed("agent.json already sets the fabrics of this machine. Change them there", 2)
    try:
        return resolve(parse(statements), config.sysfs_root)
    except BadFabric as error:
        raise CommandFailed(f"--fabric: {error}", 2) from error


def _keep_fabrics(state: Path, fabrics: tuple[Fabric, ...]) -> None:
    if fabrics:
        keep(state, fabrics)
        _say(f"Fabrics: {'; '.join(map(str, fabrics))}")


def _join(arguments: argparse.Namespace, config: AgentConfig) -> int:
    options = JoinRequest(
        enroll_url=arguments.enroll_url,
        ca_hash=arguments.ca_hash,
        node_id=arguments.node_id,
        token="".join(os.environ.get(TOKEN_VARIABLE, "").split()),
        address=arguments.address,
        port=arguments.port or config.port,
        rekey=arguments.rekey,
        node_uid=arguments.node_uid,
    )
    if options.node_uid and not options.rekey:
        raise CommandFailed("--node-uid is for --rekey only", 2)
    stated = _fabrics(arguments.fabric, config)
    state = ensure_private_dir(config.state_dir)
    try:
        with exclusive(state / "join.lock"):
            if (done := _already(state, options)) is not None:
                _keep_fabrics(state, stated)
                return done
            capabilities = asyncio.run(_capabilities(config))
            options = replace(options, token=options.token or _token(), machine=_machine(capabilities))
            identity = join(options, state)
            _keep_fabrics(state, stated)
    except Locked as error:
        raise CommandFailed(f"another join uses {state} (process {error.holder})") from error
    _say(f"Enrolled as node {identity.node_id} ({identity.node_uid}).")
    _say_fingerprint(identity)
    _say_engines(capabilities)
    if options.rekey:
        _say("A node that was approved stays approved. A running agent takes the new identity within seconds.")
    else:
        _say("Now approve the node on the master's Nodes page; compare the fingerprint above.")
        _say("Start the agent with: mirbad-agent serve")
    return 0


async def _capabilities(config: AgentConfig) -> Capabilities | None:
    """Return the capabilities of this machine. A driver that hangs does not stop a join."""
    from agent.capability import read_capabilities

    try:
        async with asyncio.timeout(_MACHINE_SECONDS):
            return await read_capabilities(config)
    except TimeoutError:
        _complain("the GPUs of this machine do not respond; joining without them")
        return None


def _machine(capabilities: Capabilities | None) -> MachineSummary:
    """Return the summary for the person who approves this node."""
    gpus = capabilities.gpus[:64] if capabilities else ()
    return MachineSummary(
        os=_os_name()[:120],
        arch=platform.machine()[:40],
        hostname=socket.gethostname()[:255],
        agent_version=__version__,
        gpus=tuple(
            GpuSummary(uuid=gpu.uuid[:80], name=(gpu.name or "")[:120], memory_bytes=gpu.memory_bytes) for gpu in gpus
        ),
    )


def _say_engines(capabilities: Capabilities | None) -> None:
    """Print which engines can run here, and why others cannot: at the join, not only when a model starts."""
    if capabilities is None:
        return
    able = [f"{item.runtime} ({item.delivery})" for item in capabilities.runtimes if item.available]
    _say(f"Engines that can run here: {', '.join(able) or 'none'}.")
    unable: dict[str, list[str]] = {}
    for item in capabilities.runtimes:
        if item.problem:
            unable.setdefault(item.problem, []).append(f"{item.runtime} ({item.delivery})")
    for problem, names in unable.items():
        _say(f"Not {', '.join(names)}: {problem}")
    problems = (*capabilities.warnings, *((capabilities.gpu_problem,) if capabilities.gpu_problem else ()))
    for problem in dict.fromkeys(problems):
        _complain(problem)


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _say_fingerprint(identity: Identity) -> None:
    _say(f"Key fingerprint (SPKI SHA-256): {in_groups(identity.spki)}")


def _serve(arguments: argparse.Namespace, config: AgentConfig) -> int:
    import uvloop

    from agent.server.serve import CannotServe, serve

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, stop.set)
        await serve(config, stop)

    IdentityStore(config.state_dir).load()  # reported before the folder or a lock is created
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except CannotServe as error:
        raise CommandFailed(str(error)) from error
    except Locked as error:
        raise CommandFailed(
            f"another mirbad-agent uses {config.state_dir} (process {error.holder}). Stop it first"
        ) from error
    return 0


def _status(arguments: argparse.Namespace, config: AgentConfig) -> int:
    store = IdentityStore(config.state_dir)
    identity = store.load_if_any()
    if identity is None:
        if arguments.as_json:
            _say(json.dumps({"joined": False, "stateDir": str(config.state_dir)}))
            return 0
        _say(f"Not joined ({config.state_dir}). Run the join command from the master's Nodes page.")
        return 1
    facts = _facts(identity, config)
    if arguments.as_json:
        _say(json.dumps(facts))
        return 0
    claim = facts["heldClaim"]
    _say(f"Node             {identity.node_id} ({identity.node_uid}), fleet {identity.fleet}")
    _say_fingerprint(identity)
    _say(f"Certificate      {'EXPIRED on' if identity.has_expired else 'until'} {identity.not_after}")
    _say(f"Agent            {'running' if facts['serving'] else 'not running'}, port {config.port}")
    _say(f"Claimed by       {'epoch {epoch} of {instanceId}'.format(**claim) if claim else 'no master yet'}")
    for line in witness_status.lines(facts["witness"]):
        _say(line)
    for fabric in facts["fabrics"]:
        _say(f"Fabric           {fabric['name']}: {fabric['problem'] or ', '.join(fabric['adapters'])}")
    for instance in facts["instances"]:
        _say(f"Engine           {instance['instanceId']}: {instance['state']} ({instance['modelId']})")
    return 0


def _facts(identity: Identity, config: AgentConfig) -> dict[str, Any]:
    from agent.running.record import stored_views
    from agent.server.serve import LOCK_FILE

    claim = held_claim(config.state_dir, identity.node_uid)
    return {
        "joined": True,
        "stateDir": str(config.state_dir),
        "nodeId": identity.node_id,
        "nodeUid": identity.node_uid,
        "fleet": identity.fleet,
        "spkiSha256": identity.spki,
        "certNotAfter": identity.not_after,
        "trustBundleHash": identity.trust_bundle_hash,
        "masterSpki": identity.master.to_wire(),
        "heldClaim": claim.to_wire() if claim else None,
        "port": config.port,
        "fabrics": [
            fabric.to_wire() for fabric in fabric_capabilities(config.fabrics, config.state_dir, config.sysfs_root)
        ],
        "witness": witness_status.facts(config.state_dir, identity.node_uid),
        "serving": is_locked(config.state_dir / LOCK_FILE),
        "instances": [view.to_wire() for view in stored_views(config.state_dir)],
    }


def _accept_root(arguments: argparse.Namespace, config: AgentConfig) -> int:
    from agent import models_root

    if not models_root.accept(config):
        _say(f"Nothing to accept: the agent in {config.state_dir} remembers no other models root {config.models_root}.")
        return 0
    _say(f"Accepted: {config.models_root} counts as it is now. A running agent notices within seconds.")
    return 0


def _stop_all(arguments: argparse.Namespace, config: AgentConfig) -> int:
    from agent.server.serve import LOCK_FILE, make_instances

    if not 0 <= arguments.grace <= 600:
        raise CommandFailed("--grace must be from 0 to 600 seconds", 2)
    identity = IdentityStore(config.state_dir).load_if_any()
    if identity is None:
        _say("No engine was running: this machine has not joined a master.")
        return 0

    async def run() -> tuple[str, ...]:
        instances = make_instances(config, identity, lambda _: None)
        await instances.recover()
        try:
            return await instances.stop_everything(arguments.grace)
        finally:
            await instances.close()

    try:
        with exclusive(config.state_dir / LOCK_FILE):
            stopped = asyncio.run(run())
    except Locked as error:
        raise CommandFailed(f"the agent is still running (process {error.holder}). Stop it first") from error
    _say(f"Stopped: {', '.join(stopped)}" if stopped else "No engine was running.")
    return 0
