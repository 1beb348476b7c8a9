"""``/api/pki/ca-rotation``, and the replacement of a CA after its key was stolen."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.requests import ca_rotation
from mirbad.accounts.permissions import require_reauthentication
from mirbad.accounts.views import AdminView
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER
from nodes.pki import progress


class AuthoritySerializer(CamelSerializer):
    """A CA; `slot` is current, next, previous or withdrawn."""

    slot = serializers.CharField()
    sha256 = serializers.CharField()
    not_after = serializers.DateTimeField()


class CaRotationNodeSerializer(CamelSerializer):
    """A node in the rotation; `state` is done, waiting, stranded or leftover."""

    node_id = serializers.CharField()
    state = serializers.CharField()
    problem = serializers.CharField()
    tried_at = serializers.DateTimeField(allow_null=True)


class OneCaRotationSerializer(CamelSerializer):
    """One rotation, with its nodes while it is open and those left behind after it."""

    id = serializers.CharField()
    stage = serializers.CharField()
    started_at = serializers.DateTimeField()
    stage_since = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    close_asked_at = serializers.DateTimeField(allow_null=True)
    old_sha256 = serializers.CharField()
    new_sha256 = serializers.CharField()
    can_roll_back = serializers.BooleanField()
    can_close = serializers.BooleanField()
    nodes = CaRotationNodeSerializer(many=True)


class CaRotationSerializer(CamelSerializer):
    """The fleet's CAs, the newest rotation (null without one), and the nodes to re-pair."""

    configured = serializers.BooleanField()
    authorities = AuthoritySerializer(many=True)
    rotation = OneCaRotationSerializer(allow_null=True)
    to_re_pair = serializers.ListField(child=serializers.CharField())


class CaRotationInputSerializer(CamelSerializer):
    """The action on the rotation."""

    action = serializers.ChoiceField(choices=["start", "rollback", "close"])


class CaReplacementInputSerializer(CamelSerializer):
    """`confirm` is the phrase ``re-pair every node``."""

    confirm = serializers.CharField(max_length=200, allow_blank=True)


class CaReplacementSerializer(CamelSerializer):
    """The nodes to re-pair; they serve nothing until then."""

    to_re_pair = serializers.ListField(child=serializers.CharField())


_ACTIONS = {"start": ca_rotation.start, "rollback": ca_rotation.roll_back, "close": ca_rotation.close}


class CaRotationView(AcceptingView):
    """Rotation of the fleet's CA."""

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": ca_rotation.ACTION}

    @extend_schema(operation_id="pki_ca_rotation_read", responses=CaRotationSerializer)
    def get(self, request: Request) -> Response:
        """Return the CAs and the progress of the rotation."""
        return Response(CaRotationSerializer(_shown(progress.read())).data)

    @extend_schema(
        operation_id="pki_ca_rotation_act", request=CaRotationInputSerializer, responses={202: OperationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Begin a rotation, roll it back, or close it early."""
        require_reauthentication(request)
        action = read(CaRotationInputSerializer, request.data)["action"]
        return self.accepted(_ACTIONS[action](self.actor))


class CaReplacementView(AdminView):
    """Replacement of the CA after its key was stolen: another CA at once, which no node trusts."""

    required_role = OWNER
    audited = {"POST": ca_rotation.ACTION}

    @extend_schema(
        operation_id="pki_ca_replace", request=CaReplacementInputSerializer, responses=CaReplacementSerializer
    )
    def post(self, request: Request) -> Response:
        """Replace the CA. Every node must be re-paired, and serves nothing until then."""
        require_reauthentication(request)
        confirm = read(CaReplacementInputSerializer, request.data)["confirm"]
        left = ca_rotation.replace_stolen(confirm, self.actor)
        return Response(CaReplacementSerializer({"to_re_pair": left}).data)


def _shown(found: progress.RotationProgress) -> dict[str, Any]:
    row = found.rotation
    shown = None
    if row is not None:
        shown = {
            name: getattr(row, name)
            for name in (
                "id",
                "stage",
                "started_at",
                "stage_since",
                "finished_at",
                "close_asked_at",
                "old_sha256",
                "new_sha256",
            )
        }
        shown |= {"can_roll_back": found.can_roll_back, "can_close": found.can_close, "nodes": found.nodes}
    return {
        "configured": found.configured,
        "authorities": found.authorities,
        "rotation": shown,
        "to_re_pair": found.to_re_pair,
    }
