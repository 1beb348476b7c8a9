"""``/api/model-folders`` and ``/api/catalog``: the model folders of a node, and known models."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.views import AdminView
from mirbad.api.parameters import identity
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import catalog, folders, node_parameter

NODE_PARAMETER = OpenApiParameter("node", str, description="Node id. Optional when the fleet has one node.")


class FolderFileSerializer(CamelSerializer):
    """One file; `path` is relative to the folder."""

    path = serializers.CharField()
    size_bytes = serializers.IntegerField()


class FolderSerializer(CamelSerializer):
    """One model folder. `repository` and `commit` are null for a folder that no download created.

    `problem` says why it cannot be looked at, wholly or in part; null without one.
    """

    name = serializers.CharField()
    total_bytes = serializers.IntegerField()
    truncated = serializers.BooleanField()
    repository = serializers.CharField(allow_null=True)
    commit = serializers.CharField(allow_null=True)
    missing = serializers.ListField(child=serializers.CharField())
    files = FolderFileSerializer(many=True)
    problem = serializers.CharField(allow_null=True)
    used_by = serializers.ListField(child=serializers.CharField())


class FoldersSerializer(CamelSerializer):
    """The folders of a node, and the space on its disk (null: not reported).

    `problem` says why the models root itself cannot be looked at, or is not the one that was there before, and
    `problem_code` is its code; null without one.
    """

    node_id = serializers.CharField()
    free_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    items = FolderSerializer(many=True)
    problem = serializers.CharField(allow_null=True)
    problem_code = serializers.CharField(allow_null=True)


class FreedSerializer(CamelSerializer):
    """The result of a deletion: freed are bytes that the node listed before and no longer lists."""

    node_id = serializers.CharField()
    folder = serializers.CharField()
    freed_bytes = serializers.IntegerField()
    remaining_bytes = serializers.IntegerField()


class GgufSerializer(CamelSerializer):
    """One GGUF model, with the values of its header; null is absent."""

    path = serializers.CharField()
    parts = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    architecture = serializers.CharField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    quantization = serializers.CharField(allow_null=True)
    context_length = serializers.IntegerField(allow_null=True)
    parameters = serializers.IntegerField(allow_null=True)
    problem = serializers.CharField(allow_null=True)


class GgufListSerializer(CamelSerializer):
    """The GGUF models of a folder."""

    folder = serializers.CharField()
    items = GgufSerializer(many=True, source="files")


class CatalogEntrySerializer(CamelSerializer):
    """A known model, and its state on the node. `present` and `delivery` are null when unknown."""

    id = serializers.CharField(source="entry.id")
    name = serializers.CharField(source="entry.name")
    repository = serializers.CharField(source="entry.repository")
    revision = serializers.CharField(source="entry.revision")
    files = serializers.ListField(child=serializers.CharField(), source="entry.files")
    folder = serializers.CharField(source="entry.folder")
    size_bytes = serializers.IntegerField(source="entry.size_bytes")
    runtime = serializers.CharField(source="entry.runtime")
    license = serializers.CharField(source="entry.license")
    gated = serializers.BooleanField(source="entry.gated")
    about = serializers.CharField(source="entry.about")
    present = serializers.BooleanField(allow_null=True)
    delivery = serializers.CharField(allow_null=True)
    problem = serializers.CharField()


class CatalogSerializer(CamelSerializer):
    """The catalog with its state on one node, by the node's last report."""

    node_id = serializers.CharField()
    items = CatalogEntrySerializer(many=True)


class FoldersView(AdminView):
    """Model folders of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="model_folders_list", parameters=[NODE_PARAMETER], responses=FoldersSerializer)
    def get(self, request: Request) -> Response:
        """List the folders of the node now."""
        found = folders.listed(identity(request, "node"))
        items = [
            {**folder.model_dump(), "used_by": found.used_by.get(folder.name, ())} for folder in found.listed.folders
        ]
        body = {
            "node_id": found.node.pk,
            "free_bytes": found.listed.free_bytes,
            "total_bytes": found.listed.total_bytes,
            "items": items,
            "problem": found.listed.problem,
            "problem_code": found.listed.problem_code,
        }
        return Response(FoldersSerializer(body).data)


class FolderView(AdminView):
    """One model folder of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"DELETE": "folder.delete"}

    @extend_schema(operation_id="model_folders_delete", parameters=[NODE_PARAMETER], responses=FreedSerializer)
    def delete(self, request: Request, folder: str) -> Response:
        """Delete the folder, unless a model runs from it."""
        node = node_parameter.named(identity(request, "node"))
        gone = folders.remove(node.pk, folder, self.actor)
        body = {
            "node_id": node.pk,
            "folder": folder,
            "freed_bytes": gone.freed_bytes,
            "remaining_bytes": gone.remaining_bytes,
        }
        return Response(FreedSerializer(body).data)


class GgufView(AdminView):
    """The GGUF models of a folder."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="model_folders_gguf", parameters=[NODE_PARAMETER], responses=GgufListSerializer)
    def get(self, request: Request, folder: str) -> Response:
        """Read the headers of the folder's GGUF models now."""
        return Response(GgufListSerializer(folders.gguf(identity(request, "node"), folder)).data)


class CatalogView(AdminView):
    """Known models."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="catalog_list", parameters=[NODE_PARAMETER], responses=CatalogSerializer)
    def get(self, request: Request) -> Response:
        """List the catalog for a node, by its last report: the node need not be reachable."""
        node = node_parameter.named(identity(request, "node"))
        return Response(CatalogSerializer({"node_id": node.pk, "items": catalog.offers(node)}).data)
