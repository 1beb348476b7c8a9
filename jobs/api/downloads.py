"""``/api/downloads``: downloads of sets of files to a node."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agent.common.formats.pickles import is_pickle
from jobs.api.serializers import OperationSerializer
from jobs.api.views import AcceptingView
from jobs.kinds import download
from jobs.requests import cancellation, downloads
from mirbad.api.parameters import identity
from mirbad.api.serializers import CamelSerializer, read
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import node_parameter, selection
from models_app.artifacts.download_request import DownloadRequest

_NODE = OpenApiParameter("node", str, description="The acting node. Default: the only one.")
_REPOSITORY = r"^[A-Za-z0-9._-]{1,120}/[A-Za-z0-9._-]{1,120}$"
_REVISION = r"^[A-Za-z0-9._/-]*$"


class RepositoryInputSerializer(CamelSerializer):
    """A repository on Hugging Face. `hfToken` is for a gated or private one; it is never stored."""

    repository = serializers.RegexField(_REPOSITORY)
    revision = serializers.RegexField(_REVISION, max_length=80, allow_blank=True, default="")
    hf_token = serializers.CharField(max_length=500, allow_blank=True, allow_null=True, default=None, write_only=True)


class DownloadInputSerializer(RepositoryInputSerializer):
    """A set of files. `files` are names or patterns; without any, the files needed to run the model."""

    files = serializers.ListField(child=serializers.CharField(max_length=512), max_length=200, default=list)
    folder = serializers.RegexField(r"^$|^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128, allow_blank=True, default="")
    allow_pickle = serializers.BooleanField(default=False)


class RepositoryFileSerializer(CamelSerializer):
    """One file of a repository. `usual` files are downloaded by default; a `pickle` only where that is allowed."""

    path = serializers.CharField()
    size_bytes = serializers.IntegerField()
    pickle = serializers.BooleanField()
    usual = serializers.BooleanField()


class RepositorySerializer(CamelSerializer):
    """A repository at one commit. `problem` is the reason against a download of the usual files."""

    node_id = serializers.CharField()
    repository = serializers.CharField()
    commit = serializers.CharField()
    gated = serializers.BooleanField()
    license = serializers.CharField()
    folder = serializers.CharField()
    files = RepositoryFileSerializer(many=True)
    problem = serializers.CharField(allow_blank=True)


class DownloadSerializer(CamelSerializer):
    """A download: its operation, its files, and its progress on the node. Null is not reported.

    `waits_until` is the time to which the hub asked the node to wait; null while it does not wait.
    """

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
    waits_until = serializers.CharField(allow_null=True)
    files_done = serializers.IntegerField(allow_null=True)
    files_total = serializers.IntegerField()
    actor = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class DownloadListSerializer(CamelSerializer):
    """The downloads of one node, newest first."""

    node_id = serializers.CharField()
    items = DownloadSerializer(many=True)


def _body(shown: downloads.DownloadStatus) -> dict[str, Any]:
    row, view = shown.operation, shown.view
    spec = download.KIND.step(row).input.spec
    error = row.error or {}
    progress = row.progress or {}
    open_ = row.finished_at is None
    return {
        "id": row.pk,
        "node_id": row.node_id_text,
        "repository": spec.repository,
        "commit": spec.commit,
        "folder": spec.folder,
        "state": (view.state.value if view else row.stage) if open_ else row.outcome,
        "reason": error.get("detail", ""),
        "code": error.get("code", ""),
        "done_bytes": view.done_bytes if view else progress.get("doneBytes"),
        "total_bytes": spec.total_bytes,
        "bytes_per_second": view.bytes_per_second if view and open_ else None,
        "waits_until": view.waits_until if view and open_ else None,
        "files_done": view.files_done if view else None,
        "files_total": len(spec.files),
        "actor": row.actor,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


class DownloadsView(AcceptingView):
    """Downloads to a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"POST": "download"}

    @extend_schema(operation_id="downloads_list", parameters=[_NODE], responses=DownloadListSerializer)
    def get(self, request: Request) -> Response:
        """List the downloads of a node, with their present progress there."""
        node, found = downloads.of_node(identity(request, "node"))
        body = {"node_id": node.pk, "items": [_body(shown) for shown in found]}
        return Response(DownloadListSerializer(body).data)

    @extend_schema(
        operation_id="downloads_create",
        parameters=[_NODE],
        request=DownloadInputSerializer,
        responses={202: OperationSerializer},
    )
    def post(self, request: Request) -> Response:
        """Download files to the node. Repeating the request returns the same operation."""
        data = read(DownloadInputSerializer, request.data)
        node = node_parameter.named(identity(request, "node"))
        files = DownloadRequest(
            repository=data["repository"],
            revision=data["revision"],
            files=tuple(data["files"]),
            folder=data["folder"],
            allow_pickle=data["allow_pickle"],
        )
        return self.accepted(downloads.request(node.pk, files, data["hf_token"] or None, self.actor))


class DownloadInspectionView(AcceptingView):
    """The files of a repository, before a download."""

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
        """List the files of a repository with sizes, and the ones that are downloaded by default."""
        data = read(RepositoryInputSerializer, request.data)
        files = DownloadRequest(data["repository"], data["revision"])
        node, found = downloads.inspect(identity(request, "node"), files, data["hf_token"] or None)
        usual, problem = selection.default_files(found.name, found.files)
        body = {
            "node_id": node.pk,
            "repository": found.name,
            "commit": found.commit,
            "gated": found.gated,
            "license": found.license,
            "folder": selection.folder_for(found.name),
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


class OneDownloadView(AcceptingView):
    """One download."""

    asks_nodes = True

    required_role = OPERATOR
    audited = {"DELETE": "download"}

    @extend_schema(operation_id="downloads_delete", parameters=[_NODE], responses={202: OperationSerializer, 204: None})
    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel an open download; of an ended one, remove the unfinished files from its node."""
        row = downloads.one(operation_id)
        node_id = identity(request, "node")
        if node_id and node_parameter.named(node_id).pk != row.node_id_text:
            raise NotFound(f"Node {node_id!r} has no download {operation_id!r}.")
        if row.finished_at is None:
            return self.accepted(cancellation.request(operation_id, self.actor))
        downloads.forget(operation_id, self.actor)
        return Response(status=204)
