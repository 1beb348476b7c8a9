"""vLLM over several nodes, by its own distributed back end: the arguments and the environment of one shard.

Every node runs the same command with its rank; rank 0 serves, the others are headless. The GPUs of one node split each
layer (tensor parallel), the nodes follow each other (pipeline parallel), unless the person says otherwise.
"""

from agent.runtimes.base import Meeting
from agent.runtimes.flags import given, rejected
from agent.wire.instances import LaunchSpec

_PIPELINE = ("--pipeline-parallel-size", "-pp")
_BACKEND = "--distributed-executor-backend"


def check(spec: LaunchSpec) -> None:
    """AgentError SPEC_REJECTED when the person's arguments cannot be those of a shard."""
    if given(spec.args, _BACKEND):
        raise rejected(f"the argument {_BACKEND} is set by the agent for a replica on several nodes; remove it.")
    if spec.rendezvous is not None:
        _sizes(spec, spec.rendezvous.world_size)


def arguments(spec: LaunchSpec, meeting: Meeting) -> tuple[str, ...]:
    """What this shard is told beside what every vLLM is."""
    tensor, pipeline = _sizes(spec, meeting.world_size)
    argv: tuple[str, ...] = (_BACKEND, "mp", "--nnodes", str(meeting.world_size), "--node-rank", str(meeting.rank))
    argv = (*argv, "--master-addr", meeting.address, "--master-port", str(meeting.port))
    argv = (*argv, "--tensor-parallel-size", str(tensor))
    if not given(spec.args, *_PIPELINE):
        argv = (*argv, "--pipeline-parallel-size", str(pipeline))
    return argv if meeting.rank == 0 else (*argv, "--headless")


def environment(spec: LaunchSpec, meeting: Meeting) -> dict[str, str]:
    """Which adapters NCCL and Gloo use; what the person set of these stays."""
    env: dict[str, str] = {}
    if meeting.devices:
        # "=" is an exact match: mlx5_1 must not mean mlx5_10, too.
        env["NCCL_IB_HCA"] = f"={','.join(meeting.devices)}"
    elif meeting.interfaces:
        env["NCCL_IB_DISABLE"] = "1"
    sockets = meeting.interfaces or ((meeting.interface,) if meeting.interface else ())
    if sockets:
        env["NCCL_SOCKET_IFNAME"] = f"={','.join(sockets)}"
    if meeting.interface:
        env["GLOO_SOCKET_IFNAME"] = meeting.interface
    kept = {name: value for name, value in env.items() if name not in spec.env and name not in spec.secret_env}
    if meeting.own_address:
        kept["VLLM_HOST_IP"] = meeting.own_address
    return kept


def _sizes(spec: LaunchSpec, nodes: int) -> tuple[int, int]:
    """Tensor and pipeline parallel sizes; together they use each GPU of each node once."""
    everything = nodes * max(1, len(spec.gpu_uuids))
    pipeline = _asked_pipeline(spec.args) or nodes
    if everything % pipeline:
        raise rejected(
            f"--pipeline-parallel-size {pipeline} does not divide the {everything} GPUs of the replica; choose another."
        )
    return everything // pipeline, pipeline


def _asked_pipeline(args: tuple[str, ...]) -> int | None:
    for at, argument in enumerate(args):
        if given((argument,), *_PIPELINE):
            value = argument.partition("=")[2] or (args[at + 1] if at + 1 < len(args) else "")
            if not value.isdecimal() or int(value) < 1:
                raise rejected(f"--pipeline-parallel-size needs a whole number from 1, not '{value}'.")
            return int(value)
    return None
