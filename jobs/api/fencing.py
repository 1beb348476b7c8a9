"""``/api/fencing/takeover`` and its continuation. Who commands is read at ``/api/fencing``, in `nodes`."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs import takeover
from jobs.api.serializers import OperationSerializer
from jobs.api.views import Accepting
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR

_HIGHEST_EPOCH = 2**63 - 2


class TakeoverInputSerializer(CamelSerializer):
    """`confirm` is the phrase ``the previous master is stopped``."""

    confirm = serializers.CharField(max_length=200, allow_blank=True)


class ContinuationInputSerializer(CamelSerializer):
    """The values of one node in ``GET /api/fencing``, and in `confirm` its id."""

    node_id = serializers.CharField(max_length=40)
    takeover_id = serializers.CharField(max_length=40)
    agent_epoch = serializers.IntegerField(min_value=1, max_value=_HIGHEST_EPOCH)
    confirm = serializers.CharField(max_length=200, allow_blank=True)


class Takeover(Accepting):
    """The way by which this master becomes the one that nodes obey."""

    required_role = OPERATOR
    audited = {"POST": "fencing.takeover"}

    @extend_schema(
        operation_id="fencing_takeover", request=TakeoverInputSerializer, responses={202: OperationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Take over, whatever the states of the nodes; asked twice, it is the same operation."""
        require_reauthentication(request)
        confirm = read(TakeoverInputSerializer, request.data)["confirm"]
        return self.accepted(takeover.request(confirm, self.actor))


class Continuation(Accepting):
    """A node that came back under another master becomes ours."""

    required_role = OPERATOR
    audited = {"POST": "fencing.continue"}

    @extend_schema(
        operation_id="fencing_continue", request=ContinuationInputSerializer, responses={202: OperationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Continue the takeover for one node, for exactly the claim that was read of it."""
        require_reauthentication(request)
        asked = read(ContinuationInputSerializer, request.data)
        operation = takeover.resume(
            asked["node_id"], asked["takeover_id"], asked["agent_epoch"], asked["confirm"], self.actor
        )
        return self.accepted(operation)
