"""``/api/downloads``: sets of files on their way to a node."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agent.wire.pickles import is_pickle
from jobs import downloads, requests
from jobs.api.serializers import OperationSerializer
from jobs.api.views import Accepting
from mirbad.api.parameters import identity
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import acting, choose
from models_app.artifacts.wishes import Wish

_NODE = OpenApiParameter("node", str, description="The node that acts; the only one when it is left out.")
_REPOSITORY = r"^[A-Za-z0-9._-]{1,120}/[A-Za-z0-9._-]{1,120}$"
_REVISION = r"^[A-Za-z0-9._/-]*$"


class RepositoryInputSerializer(CamelSerializer):
    """A repository of the hub. `hfToken` is for a gated or private one; it is kept in no place but memory."""

    repository = serializers.RegexField(_REPOSITORY)
    revision = serializers.RegexField(_REVISION, max_length=80, allow_blank=True, default="")
    hf_token = serializers.CharField(max_length=500, allow_blank=True, allow_null=True, default=None, write_only=True)


class DownloadInputSerializer(RepositoryInputSerializer):
    """What to bring. `files` are names or patterns; without any, those that make the model."""

    files = serializers.ListField(child=serializers.CharField(max_length=512), max_length=200, default=list)
    folder = serializers.RegexField(r"^$|^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128, allow_blank=True, default="")
    allow_pickle = serializers.BooleanField(default=False)


class RepositoryFileSerializer(CamelSerializer):
    """One file of a repository. `usual` ones come when none is named; a `pickle` comes only where that is allowed."""

    path = serializers.CharField()
    size_bytes = serializers.IntegerField()
    pickle = serializers.BooleanField()
    usual = serializers.BooleanField()


class RepositorySerializer(CamelSerializer):
    """A repository at one commit. `problem` says why the usual files cannot be taken as they are."""

    node_id = serializers.CharField()
    repository = serializers.CharField()
    commit = serializers.CharField()
    gated = serializers.BooleanField()
    license = serializers.CharField()
    folder = serializers.CharField()
    files = RepositoryFileSerializer(many=True)
    problem = serializers.CharField(allow_blank=True)


class DownloadSerializer(CamelSerializer):
    """A download: the operation, what it brings, and how far its node is. Null is not reported."""

    id = serializers.CharField()
    node_id = serializers.CharField()
    repository = serializers.CharField()
    commit = serializers.CharField()
    folder = serializers.CharField()
    state = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
    code = serializers.CharField(allow_blank=True)
    done_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField()
    bytes_per_second = serializers.FloatField(allow_null=True)
    files_done = serializers.IntegerField(allow_null=True)
    files_total = serializers.IntegerField()
    actor = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class DownloadListSerializer(CamelSerializer):
    """The downloads of one node, the newest first."""

    node_id = serializers.CharField()
    items = DownloadSerializer(many=True)


def _told(shown: downloads.Shown) -> dict[str, Any]:
    row, view, spec = shown.operation, shown.view, shown.operation.input["spec"]
    error = row.error or {}
    progress = row.progress or {}
    open_ = row.finished_at is None
    return {
        "id": row.pk,
        "node_id": row.node_id_text,
        "repository": spec["repository"],
        "commit": spec["commit"],
        "folder": spec["folder"],
        "state": (view.state.value if view else row.stage) if open_ else row.outcome,
        "reason": error.get("detail", ""),
        "code": error.get("code", ""),
        "done_bytes": view.done_bytes if view else progress.get("doneBytes"),
        "total_bytes": sum(file["sizeBytes"] for file in spec["files"]),
        "bytes_per_second": view.bytes_per_second if view and open_ else None,
        "files_done": view.files_done if view else None,
        "files_total": len(spec["files"]),
        "actor": row.actor,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


class Downloads(Accepting):
    """Sets of files on their way to a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": "download"}

    @extend_schema(operation_id="downloads_list", parameters=[_NODE], responses=DownloadListSerializer)
    def get(self, request: Request) -> Response:
        """Downloads of a node, with what it says of them now."""
        node, found = downloads.of_node(identity(request, "node"))
        body = {"node_id": node.pk, "items": [_told(shown) for shown in found]}
        return Response(DownloadListSerializer(body).data)

    @extend_schema(
        operation_id="downloads_create",
        parameters=[_NODE],
        request=DownloadInputSerializer,
        responses={202: OperationSerializer},
    )
    def post(self, request: Request) -> Response:
        """Bring a set to the node; asked twice, it is the same operation."""
        asked = read(DownloadInputSerializer, request.data)
        node = acting.named(identity(request, "node"))
        wish = Wish(
            repository=asked["repository"],
            revision=asked["revision"],
            files=tuple(asked["files"]),
            folder=asked["folder"],
            allow_pickle=asked["allow_pickle"],
        )
        return self.accepted(downloads.request(node.pk, wish, asked["hf_token"] or None, self.actor))


class Inspection(Accepting):
    """What a repository holds, before anything is chosen."""

    asks_nodes = True

    required_role = OPERATOR
    audited = {"POST": "download"}

    @extend_schema(
        operation_id="downloads_inspect",
        parameters=[_NODE],
        request=RepositoryInputSerializer,
        responses=RepositorySerializer,
    )
    def post(self, request: Request) -> Response:
        """Its files with sizes, and which of them would come."""
        asked = read(RepositoryInputSerializer, request.data)
        wish = Wish(asked["repository"], asked["revision"])
        node, found = downloads.inspect(identity(request, "node"), wish, asked["hf_token"] or None)
        usual, problem = choose.usual(found.name, found.files)
        body = {
            "node_id": node.pk,
            "repository": found.name,
            "commit": found.commit,
            "gated": found.gated,
            "license": found.license,
            "folder": choose.folder_for(found.name),
            "problem": problem,
            "files": [
                {
                    "path": file.path,
                    "size_bytes": file.size_bytes,
                    "pickle": is_pickle(file.path),
                    "usual": file.path in usual,
                }
                for file in found.files
            ],
        }
        return Response(RepositorySerializer(body).data)


class Download(Accepting):
    """One download."""

    asks_nodes = True

    required_role = OPERATOR
    audited = {"DELETE": "download"}

    @extend_schema(operation_id="downloads_delete", parameters=[_NODE], responses={202: OperationSerializer, 204: None})
    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel it while it runs; of one that is over, remove what it left unfinished on its node."""
        row = downloads.one(operation_id)
        wanted = identity(request, "node")
        if wanted and acting.named(wanted).pk != row.node_id_text:
            raise NotFound(f"Node {wanted!r} has no download {operation_id!r}.")
        if row.finished_at is None:
            return self.accepted(requests.cancel(operation_id, self.actor))
        downloads.forget(operation_id, self.actor)
        return Response(status=204)
