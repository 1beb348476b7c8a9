"""``mirbad-agent``: join, serve, status, stop-all. Exit 0 done, 1 not done and why, 2 a wrong command line."""

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

from agent import __version__
from agent.config import DEFAULT_CONFIG, AgentConfig, BadConfig, read_config
from agent.enrol import JoinFailed, JoinOrder, existing, join
from agent.fabrics import BadFabric, Fabric, parse, resolve
from agent.fence import BrokenFence, held_claim
from agent.identity import BrokenIdentity, Identity, IdentityStore, MissingIdentity, in_groups
from agent.server import logs
from agent.state import Locked, ensure_private_dir, exclusive, is_locked
from agent.telemetry.fabrics import capabilities as told
from agent.telemetry.fabrics import keep
from agent.wire.capability import Capabilities
from agent.wire.enroll import GpuSummary, MachineSummary
from agent.wire.instances import InstanceView

TOKEN_VARIABLE = "MIRBAD_JOIN_TOKEN"  # noqa: S105  the name of a variable, not a token
_MACHINE_SECONDS = 20.0


class CommandFailed(Exception):
    """The command did not do what was asked; the text is for the person at the terminal."""

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
            f"a token on the command line would show in the process list; give it in {TOKEN_VARIABLE} or at the prompt"
        )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="mirbad-agent", description="The agent of a Mirbad node.")
    parser.add_argument("--version", action="version", version=f"mirbad-agent {__version__}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, help=f"the agent's configuration (default {DEFAULT_CONFIG})")
    shared.add_argument("--state-dir", type=Path, help="where identity and records live, instead of agent.json's")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{join,serve,status,stop-all}")

    verb = verbs.add_parser("join", parents=[shared], help="join a master, or re-pair with it")
    verb.add_argument("--enroll-url", required=True, help="https://master:8443")
    verb.add_argument("--ca-hash", required=True, help="sha256:… of the master's CA; several with commas")
    verb.add_argument("--node-id", required=True)
    verb.add_argument("--address", help="where the master should dial this agent, when not where the join comes from")
    verb.add_argument("--port", type=int, help="the agent's port, instead of agent.json's")
    verb.add_argument("--rekey", action="store_true", help="a new key for a node that the master knows")
    verb.add_argument("--node-uid", help="with --rekey, when the state folder is lost")
    verb.add_argument(
        "--fabric",
        action="append",
        default=[],
        metavar="NAME[:ADAPTER,…]",
        help="a fast network that this machine shares with other nodes, such as ib-b or ib-b:mlx5_2,mlx5_3; may repeat",
    )
    verb.add_argument("--token", action=_RefuseToken, help=argparse.SUPPRESS)
    verb.set_defaults(run=_join)

    verb = verbs.add_parser("serve", parents=[shared], help="run engines and answer the master")
    verb.set_defaults(run=_serve)

    verb = verbs.add_parser("status", parents=[shared], help="what this machine's agent is, without asking it")
    verb.add_argument("--json", action="store_true", dest="as_json")
    verb.set_defaults(run=_status)

    verb = verbs.add_parser("stop-all", parents=[shared], help="end the engines of this agent, after it has ended")
    verb.add_argument("--grace", type=float, default=10.0, help="seconds before an engine is killed (default 10)")
    verb.set_defaults(run=_stop_all)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
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
    except (JoinFailed, MissingIdentity, BrokenIdentity, BrokenFence) as error:
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
        raise CommandFailed(f"there is no configuration file {path}", 2)
    try:
        config = read_config(path)
    except BadConfig as error:
        raise CommandFailed(str(error), 2) from error
    if arguments.state_dir is not None:
        config = config.model_copy(update={"state_dir": arguments.state_dir.absolute()})
    if config.log_level.lower() not in {"debug", "info", "warning", "error"}:
        raise CommandFailed(f"{path}: log_level must be debug, info, warning or error", 2)
    return config


def _already(state: Path, order: JoinOrder) -> int | None:
    """Say that the join was done before, and the exit code; None when it has to be made."""
    store = IdentityStore(state)
    uid = _uid_of(store)
    claimed = uid is not None and held_claim(state, uid) is not None
    identity = existing(store, order, claimed=claimed)
    if identity is None:
        return None
    _say(f"This machine is already node {identity.node_id} of that master; nothing was changed.")
    _say_fingerprint(identity)
    if not claimed:
        _say("It waits for approval on the master's Nodes page. If it was rejected there, join with a new token.")
    return 0


def _uid_of(store: IdentityStore) -> str | None:
    try:
        identity = store.load_if_any()
    except BrokenIdentity:
        return None
    return identity.node_uid if identity else None


def _token() -> str:
    if not sys.stdin.isatty():
        raise CommandFailed(f"give the join token in {TOKEN_VARIABLE}, or run this on a terminal to be asked", 2)
    if not (token := "".join(getpass.getpass("Join token: ").split())):
        raise CommandFailed("the join token is empty", 2)
    return token


def _fabrics(statements: Sequence[str], config: AgentConfig) -> tuple[Fabric, ...]:
    """What the command states, with the adapters found out, before anything is sent or written."""
    if statements and config.fabrics:
        raise CommandFailed("agent.json states the fabrics of this machine already; change them there", 2)
    try:
        return resolve(parse(statements), config.sysfs_root)
    except BadFabric as error:
        raise CommandFailed(f"--fabric: {error}", 2) from error


def _keep_fabrics(state: Path, fabrics: tuple[Fabric, ...]) -> None:
    if fabrics:
        keep(state, fabrics)
        _say(f"Fabrics: {'; '.join(map(str, fabrics))}")


def _join(arguments: argparse.Namespace, config: AgentConfig) -> int:
    order = JoinOrder(
        enroll_url=arguments.enroll_url,
        ca_hash=arguments.ca_hash,
        node_id=arguments.node_id,
        token="".join(os.environ.get(TOKEN_VARIABLE, "").split()),
        address=arguments.address,
        port=arguments.port or config.port,
        rekey=arguments.rekey,
        node_uid=arguments.node_uid,
    )
    if order.node_uid and not order.rekey:
        raise CommandFailed("--node-uid is for --rekey only", 2)
    stated = _fabrics(arguments.fabric, config)
    state = ensure_private_dir(config.state_dir)
    try:
        with exclusive(state / "join.lock"):
            if (done := _already(state, order)) is not None:
                _keep_fabrics(state, stated)
                return done
            capabilities = asyncio.run(_capabilities(config))
            order = replace(order, token=order.token or _token(), machine=_machine(capabilities))
            identity = join(order, state)
            _keep_fabrics(state, stated)
    except Locked as error:
        raise CommandFailed(f"another join runs on {state} (process {error.holder})") from error
    _say(f"Enrolled as node {identity.node_id} ({identity.node_uid}).")
    _say_fingerprint(identity)
    _say_engines(capabilities)
    if order.rekey:
        _say("A node that was approved stays approved. A running agent takes the new identity within seconds.")
    else:
        _say("Now approve the node on the master's Nodes page; compare the fingerprint above.")
        _say("Start the agent with: mirbad-agent serve")
    return 0


async def _capabilities(config: AgentConfig) -> Capabilities | None:
    """What this machine is and can do. A driver that hangs does not stop a join."""
    from agent.capability import read_capabilities

    try:
        async with asyncio.timeout(_MACHINE_SECONDS):
            return await read_capabilities(config)
    except TimeoutError:
        _complain("the GPUs of this machine did not answer; the join goes on without naming them")
        return None


def _machine(capabilities: Capabilities | None) -> MachineSummary:
    """What a person is shown who approves this node."""
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
    """Which engines can run here, and of the others why not: now, and not first when a model is started."""
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

    IdentityStore(config.state_dir).load()  # said before the folder or a lock is made
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except CannotServe as error:
        raise CommandFailed(str(error)) from error
    except Locked as error:
        raise CommandFailed(
            f"another mirbad-agent serves from {config.state_dir} (process {error.holder}); stop it first"
        ) from error
    return 0


def _status(arguments: argparse.Namespace, config: AgentConfig) -> int:
    store = IdentityStore(config.state_dir)
    identity = store.load_if_any()
    if identity is None:
        if arguments.as_json:
            _say(json.dumps({"joined": False, "stateDir": str(config.state_dir)}))
            return 0
        _say(f"Not joined ({config.state_dir}). Run the join command that the master's Nodes page shows.")
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
    for fabric in facts["fabrics"]:
        _say(f"Fabric           {fabric['name']}: {fabric['problem'] or ', '.join(fabric['adapters'])}")
    for instance in facts["instances"]:
        _say(f"Engine           {instance['instanceId']}: {instance['state']} ({instance['modelId']})")
    return 0


def _facts(identity: Identity, config: AgentConfig) -> dict[str, Any]:
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
        "fabrics": [fabric.to_wire() for fabric in told(config.fabrics, config.state_dir, config.sysfs_root)],
        "serving": is_locked(config.state_dir / LOCK_FILE),
        "instances": [view.to_wire() for view in _stored_views(config.state_dir)],
    }


def _stored_views(state_dir: Path) -> tuple[InstanceView, ...]:
    """The engines as they were last written down."""
    from agent.running.record import Records

    if not (state_dir / "instances").is_dir():
        return ()
    records = Records(state_dir)
    try:
        return tuple(record.view(None, None) for record in asyncio.run(records.load()))
    finally:
        records.close()


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
        raise CommandFailed(f"the agent still runs (process {error.holder}); stop it first") from error
    _say(f"Ended: {', '.join(stopped)}" if stopped else "No engine was running.")
    return 0
