"""``/api/fencing/takeover``, its continuation, and ``stand-down``. The read of ``/api/fencing`` is in `nodes`."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agent.wire.fence import MAX_EPOCH
from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.requests import stand_down, takeover
from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, OWNER
from nodes import queries
from nodes.api.serializers import FencingSerializer, fencing_view
from nodes.models import MasterIdentity

_HIGHEST_EPOCH = MAX_EPOCH - 1


class TakeoverInputSerializer(CamelSerializer):
    """`confirm` is the phrase ``the previous master is stopped``."""

    confirm = serializers.CharField(max_length=200, allow_blank=True)


class ContinuationInputSerializer(CamelSerializer):
    """The values of one node in ``GET /api/fencing``, and in `confirm` its id."""

    node_id = serializers.CharField(max_length=40)
    takeover_id = serializers.CharField(max_length=40, allow_blank=True, default="")
    agent_epoch = serializers.IntegerField(min_value=1, max_value=_HIGHEST_EPOCH)
    confirm = serializers.CharField(max_length=200, allow_blank=True)


class StandDownInputSerializer(CamelSerializer):
    """`confirm` is the phrase ``this master stands down``."""

    confirm = serializers.CharField(max_length=200, allow_blank=True)


class TakeOver(AcceptingView):
    """A takeover of the fleet by this master."""

    required_role = OPERATOR
    audited = {"POST": "fencing.takeover"}

    @extend_schema(
        operation_id="fencing_takeover", request=TakeoverInputSerializer, responses={202: OperationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Take over, in any state of the nodes. Repeating the request returns the same operation."""
        require_reauthentication(request)
        confirm = read(TakeoverInputSerializer, request.data)["confirm"]
        return self.accepted(takeover.request(confirm, self.actor))


class ContinueTakeover(AcceptingView):
    """Continuation of a takeover for a node that returned under another master."""

    required_role = OPERATOR
    audited = {"POST": "fencing.continue"}

    @extend_schema(
        operation_id="fencing_continue", request=ContinuationInputSerializer, responses={202: OperationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Continue the takeover for one node, for exactly the claim that was read."""
        require_reauthentication(request)
        data = read(ContinuationInputSerializer, request.data)
        operation = takeover.resume(
            data["node_id"], data["takeover_id"], data["agent_epoch"], data["confirm"], self.actor
        )
        return self.accepted(operation)


class StandDown(AdminView):
    """The end of this master's claim, until an owner takes over with it again."""

    required_role = OWNER
    audited = {"POST": "fencing.stand-down"}

    @extend_schema(
        operation_id="fencing_stand_down", request=StandDownInputSerializer, responses={200: FencingSerializer}
    )
    def post(self, request: Request) -> Response:
        """Have this master command no node. Repeating the request changes nothing."""
        require_reauthentication(request)
        stand_down.request(read(StandDownInputSerializer, request.data)["confirm"], self.actor)
        return Response(FencingSerializer(fencing_view(MasterIdentity.objects.first(), queries.rows())).data)
