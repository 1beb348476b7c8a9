"""vLLM over several nodes, by its own distributed back end: the arguments and the environment of one shard.

Every node runs the same command with its rank; rank 0 serves, the others are headless. The GPUs of one node split each
layer (tensor parallel), the nodes follow each other (pipeline parallel), unless the arguments say otherwise.
"""

from agent.runtimes.base import LocalRendezvous
from agent.runtimes.flags import given, rejected
from agent.wire.instances import LaunchSpec

_PIPELINE = ("--pipeline-parallel-size", "-pp")
_BACKEND = "--distributed-executor-backend"


def check(spec: LaunchSpec) -> None:
    """Raise AgentError SPEC_REJECTED when the arguments do not suit a shard."""
    if given(spec.args, _BACKEND):
        raise rejected(f"the argument {_BACKEND} is set by the agent for a replica on several nodes. Remove it.")
    if spec.rendezvous is not None:
        _sizes(spec, spec.rendezvous.world_size)


def arguments(spec: LaunchSpec, rendezvous: LocalRendezvous) -> tuple[str, ...]:
    """Return the arguments of this shard, beyond those of every vLLM."""
    tensor, pipeline = _sizes(spec, rendezvous.world_size)
    argv: tuple[str, ...] = (
        _BACKEND,
        "mp",
        "--nnodes",
        str(rendezvous.world_size),
        "--node-rank",
        str(rendezvous.rank),
    )
    argv = (*argv, "--master-addr", rendezvous.address, "--master-port", str(rendezvous.port))
    argv = (*argv, "--tensor-parallel-size", str(tensor))
    if not given(spec.args, *_PIPELINE):
        argv = (*argv, "--pipeline-parallel-size", str(pipeline))
    return argv if rendezvous.rank == 0 else (*argv, "--headless")


def environment(spec: LaunchSpec, rendezvous: LocalRendezvous) -> dict[str, str]:
    """Return the adapters for NCCL and Gloo as variables; those that the spec sets are kept."""
    env: dict[str, str] = {}
    if rendezvous.devices:
        # "=" is an exact match: mlx5_1 must not match mlx5_10.
        env["NCCL_IB_HCA"] = f"={','.join(rendezvous.devices)}"
    elif rendezvous.interfaces:
        env["NCCL_IB_DISABLE"] = "1"
    sockets = rendezvous.interfaces or ((rendezvous.interface,) if rendezvous.interface else ())
    if sockets:
        env["NCCL_SOCKET_IFNAME"] = f"={','.join(sockets)}"
    if rendezvous.interface:
        env["GLOO_SOCKET_IFNAME"] = rendezvous.interface
    kept = {name: value for name, value in env.items() if name not in spec.env and name not in spec.secret_env}
    if rendezvous.own_address:
        kept["VLLM_HOST_IP"] = rendezvous.own_address
    return kept


def _sizes(spec: LaunchSpec, nodes: int) -> tuple[int, int]:
    """Return tensor and pipeline parallel sizes, which together use each GPU of each node once."""
    everything = nodes * max(1, len(spec.gpu_uuids))
    pipeline = _requested_pipeline(spec.args) or nodes
    if everything % pipeline:
        raise rejected(f"--pipeline-parallel-size {pipeline} does not divide the {everything} GPUs of the replica.")
    return everything // pipeline, pipeline


def _requested_pipeline(args: tuple[str, ...]) -> int | None:
    for at, argument in enumerate(args):
        if given((argument,), *_PIPELINE):
            value = argument.partition("=")[2] or (args[at + 1] if at + 1 < len(args) else "")
            if not value.isdecimal() or int(value) < 1:
                raise rejected(f"--pipeline-parallel-size needs a whole number from 1, not '{value}'.")
            return int(value)
    return None
