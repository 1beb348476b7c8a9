"""``/api/nodes/{id}/gpus`` and ``/api/nodes/{id}/telemetry``: what a node's cards are and do, now and over time."""

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
    """A process on a GPU; `instance_id` is empty for one that is no engine's."""

    pid = serializers.IntegerField()
    name = serializers.CharField(allow_blank=True)
    used_bytes = serializers.IntegerField(allow_null=True)
    instance_id = serializers.CharField(allow_blank=True)


class PcieLinkSerializer(CamelSerializer):
    """The link in use against the card's own; rates in bytes a second."""

    lanes = serializers.IntegerField(allow_null=True)
    card_lanes = serializers.IntegerField(allow_null=True)
    generation = serializers.IntegerField(allow_null=True)
    card_generation = serializers.IntegerField(allow_null=True)
    bytes_per_second = serializers.IntegerField(allow_null=True)
    card_bytes_per_second = serializers.IntegerField(allow_null=True)
    is_slow = serializers.BooleanField()


class NodeGpuSerializer(CamelSerializer):
    """A GPU with all that is known of it. None is not reported, never 0; an absent card keeps what it is, not what
    it does. `free_bytes` is total less used; `headroom_bytes` less the reserve, too.
    """

    uuid = serializers.CharField()
    index = serializers.IntegerField(allow_null=True)
    name = serializers.CharField(allow_blank=True)
    present = serializers.BooleanField()
    lost = serializers.BooleanField()
    problem = serializers.CharField(allow_null=True)
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
    processes = GpuProcessSerializer(many=True, allow_null=True)
    models = GpuModelUseSerializer(many=True)


class NodeGpusSerializer(CamelSerializer):
    """The GPUs of a node, when its last status came, and how old that is."""

    node_id = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True)
    age_seconds = serializers.FloatField(allow_null=True)
    gpu_problem = serializers.CharField(allow_null=True)
    gpus = NodeGpuSerializer(many=True)


class NodeGpus(AdminView):
    """What the cards of one node are and do."""

    read_role = VIEWER
    required_role = VIEWER

    @extend_schema(operation_id="nodes_gpus", responses=NodeGpusSerializer)
    def get(self, request: Request, node_id: str) -> Response:
        """Every card that the node has or had."""
        node = queries.get(node_id)
        now = latest([node_id])[node_id]
        capabilities = queries.capabilities(node)
        told = {gpu.uuid: gpu for gpu in capabilities.gpus} if capabilities else {}
        rows = [view_of(gpu, told.get(gpu.uuid), now.gpus.get(gpu.uuid)) for gpu in node.gpus.all()]
        found = {
            "node_id": node_id,
            "at": now.at,
            "age_seconds": now.age_seconds,
            "gpu_problem": capabilities.gpu_problem if capabilities else None,
            "gpus": rows,
        }
        return Response(NodeGpusSerializer(found).data)


def view_of(gpu: Gpu, told: GpuCapability | None, seen: GpuStatus | None) -> dict[str, Any]:
    """The values of `NodeGpuSerializer` from a card's row, what its node said it is, and its last status."""
    seen = seen or GpuStatus(uuid=gpu.uuid)
    total = seen.total_bytes if seen.total_bytes is not None else gpu.memory_bytes
    free = None if total is None or seen.used_bytes is None else max(0, total - seen.used_bytes)
    pcie = told.pcie if told else None
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "present": gpu.present,
        "lost": bool(seen.lost or (told and told.lost)),
        "problem": seen.problem or (told.problem if told else None),
        "parent_uuid": told.parent_uuid if told else None,
        "memory_bytes": total,
        "shares_host_memory": gpu.shares_host_memory,
        "reserve_bytes": gpu.reserve_bytes,
        "used_bytes": seen.used_bytes,
        "free_bytes": free,
        "headroom_bytes": None if free is None else max(0, free - (gpu.reserve_bytes or 0)),
        "compute_capability": told.compute_capability if told else None,
        "driver_version": told.driver_version if told else None,
        "pci_address": told.pci_address if told else None,
        "pcie": None if pcie is None else pcie.model_dump() | {"is_slow": pcie.is_slow},
        "utilization_percent": seen.utilization_percent,
        "temperature_celsius": seen.temperature_celsius,
        "power_watts": seen.power_watts,
        "power_limit_watts": seen.power_limit_watts,
        "process_count": seen.process_count,
        "processes": None if seen.processes is None else [one.model_dump() for one in seen.processes],
        "models": [one.model_dump() for one in seen.models],
    }


def _values() -> serializers.ListField:
    return serializers.ListField(child=serializers.FloatField(allow_null=True))


class HostHistorySerializer(CamelSerializer):
    """The machine; one value a step, null where nothing is known."""

    used_bytes = _values()
    peak_bytes = _values()
    total_bytes = _values()
    cpu_percent = _values()


class ModelHistorySerializer(CamelSerializer):
    """Memory of one model on one GPU."""

    model_id = serializers.CharField()
    used_bytes = _values()


class GpuHistorySerializer(CamelSerializer):
    """One GPU over the time."""

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
    """What a node measured, in even steps of `step` seconds that begin at `times`. A gap is null, never 0."""

    node_id = serializers.CharField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    step = serializers.IntegerField()
    times = serializers.ListField(child=serializers.DateTimeField())
    samples = serializers.ListField(child=serializers.IntegerField())
    host = HostHistorySerializer()
    gpus = GpuHistorySerializer(many=True)


class NodeTelemetry(AdminView):
    """What one node measured over a time."""

    read_role = VIEWER
    required_role = VIEWER

    @extend_schema(
        operation_id="nodes_telemetry",
        parameters=[
            OpenApiParameter("from", str, description="Begin, with its offset; an hour before the end by default."),
            OpenApiParameter("to", str, description="End, with its offset; now by default."),
            OpenApiParameter("step", int, description="Seconds of a step; as fine as is of use by default."),
        ],
        responses=HistorySerializer,
    )
    def get(self, request: Request, node_id: str) -> Response:
        """Memory by model, use, power and heat of every card, and memory and CPU of the machine."""
        queries.require_named(node_id)
        given = request.query_params
        start = history.moment(given["from"], "from") if "from" in given else None
        end = history.moment(given["to"], "to") if "to" in given else None
        sent = whole_number(request, "step", 0, lowest=1, highest=history.LONGEST_STEP)
        found = history.read(node_id, history.span(start, end, sent or None))
        return Response(HistorySerializer(history_view(found)).data)


def history_view(found: history.History) -> dict[str, Any]:
    """The values of `HistorySerializer`."""
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
