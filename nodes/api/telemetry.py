"""``/api/nodes/{id}/gpus`` and ``/api/nodes/{id}/telemetry``: a node's GPUs now, and its measurements over time."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agent.wire.capability import GpuCapability
from agent.wire.status import GpuStatus
from mirbad.accounts.views import AdminView
from mirbad.api.parameters import whole_number
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel.roles import VIEWER
from nodes import queries
from nodes.models import Gpu
from nodes.telemetry import history, latest


class GpuModelUseSerializer(CamelSerializer):
    """Memory of a model on a GPU: measured by its processes, or a share that was split evenly."""

    model_id = serializers.CharField()
    instance_id = serializers.CharField()
    used_bytes = serializers.IntegerField(allow_null=True)
    measured = serializers.BooleanField()


class GpuProcessSerializer(CamelSerializer):
    """A process on a GPU; `instance_id` is empty for a process that is not an engine's."""

    pid = serializers.IntegerField()
    name = serializers.CharField(allow_blank=True)
    used_bytes = serializers.IntegerField(allow_null=True)
    instance_id = serializers.CharField(allow_blank=True)


class PcieLinkSerializer(CamelSerializer):
    """The PCIe link in use, and the fastest that the card supports; rates in bytes per second."""

    lanes = serializers.IntegerField(allow_null=True)
    card_lanes = serializers.IntegerField(allow_null=True)
    generation = serializers.IntegerField(allow_null=True)
    card_generation = serializers.IntegerField(allow_null=True)
    bytes_per_second = serializers.IntegerField(allow_null=True)
    card_bytes_per_second = serializers.IntegerField(allow_null=True)
    is_slow = serializers.BooleanField()


class NodeGpuSerializer(CamelSerializer):
    """A GPU with all that is known of it. Null is not reported, never 0; an absent card keeps its description only.
    `free_bytes` is total less used; `headroom_bytes` less the reserve, too. `values_age_seconds` is the age of the
    values when the node reported them; set while the driver is slow, or while the card is `released`: its agent does
    not read it, so that it can be reset. `recovery` is the action that the driver asks for: `reset`, `reboot`,
    `drain_and_reset`, `drain_p2p`, `bus_reset`, `recover_imex_domain`.
    """

    uuid = serializers.CharField()
    index = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(allow_blank=True)
    present = serializers.BooleanField()
    lost = serializers.BooleanField()
    problem = serializers.CharField(allow_null=True)
    problem_code = serializers.CharField(allow_null=True)
    recovery = serializers.CharField(allow_null=True)
    xid = serializers.IntegerField(allow_null=True)
    released = serializers.BooleanField()
    parent_uuid = serializers.CharField(allow_null=True)
    memory_bytes = serializers.IntegerField(allow_null=True)
    shares_host_memory = serializers.BooleanField(allow_null=True)
    reserve_bytes = serializers.IntegerField(allow_null=True)
    used_bytes = serializers.IntegerField(allow_null=True)
    free_bytes = serializers.IntegerField(allow_null=True)
    headroom_bytes = serializers.IntegerField(allow_null=True)
    compute_capability = serializers.CharField(allow_null=True)
    driver_version = serializers.CharField(allow_null=True)
    pci_address = serializers.CharField(allow_null=True)
    pcie = PcieLinkSerializer(allow_null=True)
    utilization_percent = serializers.FloatField(allow_null=True)
    temperature_celsius = serializers.FloatField(allow_null=True)
    power_watts = serializers.FloatField(allow_null=True)
    power_limit_watts = serializers.FloatField(allow_null=True)
    process_count = serializers.IntegerField(allow_null=True)
    values_age_seconds = serializers.FloatField(allow_null=True)
    processes = GpuProcessSerializer(many=True, allow_null=True)
    models = GpuModelUseSerializer(many=True)


class NodeGpusSerializer(CamelSerializer):
    """The GPUs of a node, the time of its last status, and the age of that status."""

    node_id = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True)
    age_seconds = serializers.FloatField(allow_null=True)
    gpu_problem = serializers.CharField(allow_null=True)
    gpus = NodeGpuSerializer(many=True)


class NodeGpus(AdminView):
    """The GPUs of one node."""

    read_role = VIEWER
    required_role = VIEWER

    @extend_schema(operation_id="nodes_gpus", responses=NodeGpusSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """List every GPU that the node has or had."""
        node = queries.get(node_id)
        now = latest([node_id])[node_id]
        capabilities = queries.capabilities(node)
        reported = {gpu.uuid: gpu for gpu in capabilities.gpus} if capabilities else {}
        rows = [view_of(gpu, reported.get(gpu.uuid), now.gpus.get(gpu.uuid)) for gpu in node.gpus.all()]
        found = {
            "node_id": node_id,
            "at": now.at,
            "age_seconds": now.age_seconds,
            "gpu_problem": capabilities.gpu_problem if capabilities else None,
            "gpus": rows,
        }
        return Response(NodeGpusSerializer(found).data)


def view_of(gpu: Gpu, reported: GpuCapability | None, observed: GpuStatus | None) -> dict[str, Any]:
    """Return the values of `NodeGpuSerializer` from a card's row, the node's capabilities, and its last status."""
    observed = observed or GpuStatus(uuid=gpu.uuid)
    total = observed.total_bytes if observed.total_bytes is not None else gpu.memory_bytes
    free = None if total is None or observed.used_bytes is None else max(0, total - observed.used_bytes)
    pcie = reported.pcie if reported else None
    fault = observed if observed.problem or reported is None else reported
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "present": gpu.present,
        "lost": bool(observed.lost or (reported and reported.lost)),
        "problem": fault.problem,
        "problem_code": fault.problem_code,
        "recovery": fault.recovery,
        "xid": fault.xid,
        "released": observed.released,
        "parent_uuid": reported.parent_uuid if reported else None,
        "memory_bytes": total,
        "shares_host_memory": gpu.shares_host_memory,
        "reserve_bytes": gpu.reserve_bytes,
        "used_bytes": observed.used_bytes,
        "free_bytes": free,
        "headroom_bytes": None if free is None else max(0, free - (gpu.reserve_bytes or 0)),
        "compute_capability": reported.compute_capability if reported else None,
        "driver_version": reported.driver_version if reported else None,
        "pci_address": reported.pci_address if reported else None,
        "pcie": None if pcie is None else pcie.model_dump() | {"is_slow": pcie.is_slow},
        "utilization_percent": observed.utilization_percent,
        "temperature_celsius": observed.temperature_celsius,
        "power_watts": observed.power_watts,
        "power_limit_watts": observed.power_limit_watts,
        "values_age_seconds": observed.age_seconds,
        "process_count": observed.process_count,
        "processes": None if observed.processes is None else [one.model_dump() for one in observed.processes],
        "models": [one.model_dump() for one in observed.models],
    }


def _values() -> serializers.ListField:
    return serializers.ListField(child=serializers.FloatField(allow_null=True))


class HostHistorySerializer(CamelSerializer):
    """The host; one value per step, null where nothing is known."""

    used_bytes = _values()
    peak_bytes = _values()
    total_bytes = _values()
    cpu_percent = _values()


class ModelHistorySerializer(CamelSerializer):
    """Memory of one model on one GPU."""

    model_id = serializers.CharField()
    used_bytes = _values()


class GpuHistorySerializer(CamelSerializer):
    """One GPU over time."""

    uuid = serializers.CharField()
    index = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(allow_blank=True)
    present = serializers.BooleanField()
    used_bytes = _values()
    peak_bytes = _values()
    total_bytes = _values()
    utilization_percent = _values()
    power_watts = _values()
    temperature_celsius = _values()
    models = ModelHistorySerializer(many=True)


class HistorySerializer(CamelSerializer):
    """Measurements of a node in even steps of `step` seconds that begin at `times`. A gap is null, never 0."""

    node_id = serializers.CharField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    step = serializers.IntegerField()
    times = serializers.ListField(child=serializers.DateTimeField())
    samples = serializers.ListField(child=serializers.IntegerField())
    host = HostHistorySerializer()
    gpus = GpuHistorySerializer(many=True)


class NodeTelemetryView(AdminView):
    """Measurements of one node over time."""

    read_role = VIEWER
    required_role = VIEWER

    @extend_schema(
        operation_id="nodes_telemetry",
        parameters=[
            OpenApiParameter("from", str, description="Start, with UTC offset. Default: one hour before the end."),
            OpenApiParameter("to", str, description="End, with UTC offset. Default: now."),
            OpenApiParameter("step", int, description="Step in seconds. Default: the finest that the data supports."),
        ],
        responses=HistorySerializer,
    )
    def get(self, request: Request, node_id: str) -> Response:
        """Return memory by model, utilization, power and temperature of every GPU, and memory and CPU of the host."""
        queries.require_named(node_id)
        given = request.query_params
        start = history.moment(given["from"], "from") if "from" in given else None
        end = history.moment(given["to"], "to") if "to" in given else None
        sent = whole_number(request, "step", 0, lowest=1, highest=history.LONGEST_STEP)
        found = history.read(node_id, history.span(start, end, sent or None))
        return Response(HistorySerializer(history_view(found)).data)


def history_view(found: history.History) -> dict[str, Any]:
    """Return the values of `HistorySerializer`."""
    host = found.host
    return {
        "node_id": found.node_id,
        "start": found.start,
        "end": found.end,
        "step": found.step,
        "times": found.times,
        "samples": found.samples,
        "host": {
            "used_bytes": host["used"],
            "peak_bytes": host["peak"],
            "total_bytes": host["total"],
            "cpu_percent": host["cpu"],
        },
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "name": gpu.name,
                "present": gpu.present,
                "used_bytes": gpu.used,
                "peak_bytes": gpu.peak,
                "total_bytes": gpu.total,
                "utilization_percent": gpu.busy,
                "power_watts": gpu.power,
                "temperature_celsius": gpu.heat,
                "models": [{"model_id": model, "used_bytes": used} for model, used in gpu.models.items()],
            }
            for gpu in found.gpus
        ],
    }
