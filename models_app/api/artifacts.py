"""``/api/model-folders`` and ``/api/catalog``: what a node holds, and what it could."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts.views import AdminView
from mirbad.api.parameters import identity
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel.roles import OPERATOR, VIEWER
from models_app.artifacts import acting, catalog, folders

NODE_PARAMETER = OpenApiParameter("node", str, description="The node that acts; the only one when it is left out.")


class FolderFileSerializer(CamelSerializer):
    """One file; `path` is relative to the folder."""

    path = serializers.CharField()
    size_bytes = serializers.IntegerField()


class FolderSerializer(CamelSerializer):
    """One model folder. `repository` and `commit` are null for one that no download made."""

    name = serializers.CharField()
    total_bytes = serializers.IntegerField()
    truncated = serializers.BooleanField()
    repository = serializers.CharField(allow_null=True)
    commit = serializers.CharField(allow_null=True)
    missing = serializers.ListField(child=serializers.CharField())
    files = FolderFileSerializer(many=True)
    used_by = serializers.ListField(child=serializers.CharField())


class FoldersSerializer(CamelSerializer):
    """The folders of a node, and the room on its disk (null: not reported)."""

    node_id = serializers.CharField()
    free_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    items = FolderSerializer(many=True)


class FreedSerializer(CamelSerializer):
    """What a deletion freed: bytes that the node listed before and lists no more."""

    node_id = serializers.CharField()
    folder = serializers.CharField()
    freed_bytes = serializers.IntegerField()
    remaining_bytes = serializers.IntegerField()


class GgufSerializer(CamelSerializer):
    """One GGUF model, with what its header says; null is not said."""

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
    """A known model, and how the node stands to it. `present` and `delivery` are null when that is not known."""

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
    """The catalog as one node stands to it, by its last report."""

    node_id = serializers.CharField()
    items = CatalogEntrySerializer(many=True)


class Folders(AdminView):
    """Model folders of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="model_folders_list", parameters=[NODE_PARAMETER], responses=FoldersSerializer)
    def get(self, request: Request) -> Response:
        """The folders, read from the node now."""
        found = folders.listed(identity(request, "node"))
        items = [
            {**folder.model_dump(), "used_by": found.used_by.get(folder.name, ())} for folder in found.listed.folders
        ]
        body = {
            "node_id": found.node.pk,
            "free_bytes": found.listed.free_bytes,
            "total_bytes": found.listed.total_bytes,
            "items": items,
        }
        return Response(FoldersSerializer(body).data)


class Folder(AdminView):
    """One model folder of a node."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR
    audited = {"DELETE": "folder.delete"}

    @extend_schema(operation_id="model_folders_delete", parameters=[NODE_PARAMETER], responses=FreedSerializer)
    def delete(self, request: Request, folder: str) -> Response:
        """Remove it, unless a model runs from it."""
        node = acting.named(identity(request, "node"))
        gone = folders.remove(node.pk, folder, self.actor)
        body = {
            "node_id": node.pk,
            "folder": folder,
            "freed_bytes": gone.freed_bytes,
            "remaining_bytes": gone.remaining_bytes,
        }
        return Response(FreedSerializer(body).data)


class Gguf(AdminView):
    """The GGUF models of a folder."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="model_folders_gguf", parameters=[NODE_PARAMETER], responses=GgufListSerializer)
    def get(self, request: Request, folder: str) -> Response:
        """What their headers say, read from the node now."""
        return Response(GgufListSerializer(folders.gguf(identity(request, "node"), folder)).data)


class Catalog(AdminView):
    """Known models."""

    asks_nodes = True

    read_role = VIEWER
    required_role = OPERATOR

    @extend_schema(operation_id="catalog_list", parameters=[NODE_PARAMETER], responses=CatalogSerializer)
    def get(self, request: Request) -> Response:
        """The catalog for a node, by its last report: it need not be reachable."""
        node = acting.named(identity(request, "node"))
        return Response(CatalogSerializer({"node_id": node.pk, "items": catalog.offers(node)}).data)
