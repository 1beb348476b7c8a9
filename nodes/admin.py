"""Nodes in the Django admin: view, approve, reject, drain. Sealed keys and token digests are never shown."""

from collections.abc import Callable

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from mirbad.accounts import actors
from mirbad.api.read_only_admin import ReadOnlyAdmin
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, has_role
from nodes import registry
from nodes.enrollment import tokens
from nodes.models import (
    Authority,
    CaRotation,
    CaRotationNode,
    Gpu,
    JoinToken,
    Lease,
    MasterIdentity,
    Node,
    NodeCondition,
    NodePin,
    NodeWitness,
    RevokedKey,
    TelemetryProgress,
    TelemetrySample,
)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    """Machines, desired and observed. The apps above add further actions."""

    list_display = ("id", "display_name", "lifecycle", "draining", "reachability", "address", "last_seen_at")
    list_filter = ("lifecycle", "reachability", "draining")
    search_fields = ("id", "display_name", "address")
    actions: tuple[str, ...] = ("approve", "reject", "drain", "undrain")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is an operator."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Approve selected nodes…", permissions=["operate"])
    def approve(self, request: HttpRequest, queryset: QuerySet[Node]) -> HttpResponse | None:
        """Approve the selected nodes, each by the key that the confirmation page showed."""
        if "seen" not in request.POST:
            return self._ask(request, queryset, "approve")

        def by_observed_key(node_id: str, actor: Actor) -> Node:
            return registry.approve(node_id, request.POST.get(f"key-{node_id}", ""), actor)

        self._each(request, queryset, by_observed_key, "is approved")
        return None

    @admin.action(description="Reject selected nodes…", permissions=["operate"])
    def reject(self, request: HttpRequest, queryset: QuerySet[Node]) -> HttpResponse | None:
        """Delete the selected enrollment requests and their keys, after a confirmation."""
        if "seen" not in request.POST:
            return self._ask(request, queryset, "reject")
        self._each(request, queryset, registry.reject, "is rejected; its id can be used again")
        return None

    @admin.action(description="Drain selected nodes", permissions=["operate"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """Keep new models off the selected nodes."""
        self._each(request, queryset, registry.drain, "is draining")

    @admin.action(description="Undrain selected nodes", permissions=["operate"])
    def undrain(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """Accept new models on the selected nodes again."""
        self._each(request, queryset, registry.undrain, "accepts new models again")

    def _ask(self, request: HttpRequest, nodes: QuerySet[Node], action: str) -> HttpResponse:
        pins = NodePin.objects.filter(node__in=nodes, slot=NodePin.PENDING)
        keys = dict(pins.values_list("node_id", "spki_sha256"))
        context = {
            **self.admin_site.each_context(request),
            "title": f"{action.capitalize()} nodes",
            "opts": self.opts,
            "action": action,
            "checkbox": ACTION_CHECKBOX_NAME,
            "rows": [(node, keys.get(node.pk, "")) for node in nodes],
        }
        return TemplateResponse(request, "admin/admission.html", context)

    def _each(
        self, request: HttpRequest, nodes: QuerySet[Node], action: Callable[[str, Actor], object], words: str
    ) -> None:
        for node_id in list(nodes.values_list("pk", flat=True)):
            try:
                action(node_id, actors.of(request))
            except MirbadError as error:
                self.message_user(request, error.detail, messages.WARNING)
            else:
                self.message_user(request, f"Node {node_id} {words}.", messages.SUCCESS)


@admin.register(Gpu)
class GpuAdmin(ReadOnlyAdmin):
    """GPUs by UUID."""

    list_display = ("uuid", "node", "index", "name", "memory_bytes", "present")
    list_select_related = ("node",)


@admin.register(NodeCondition)
class NodeConditionAdmin(ReadOnlyAdmin):
    """Reasons for which nodes are Degraded."""

    list_display = ("node", "code", "subject", "detail", "source", "since")
    list_filter = ("code", "source")
    list_select_related = ("node",)


@admin.register(NodePin)
class NodePinAdmin(ReadOnlyAdmin):
    """Keys that nodes must present."""

    list_display = ("node", "slot", "spki_sha256", "cert_not_after")
    list_select_related = ("node",)


@admin.register(RevokedKey)
class RevokedKeyAdmin(ReadOnlyAdmin):
    """Keys that are revoked for good."""

    list_display = ("spki_sha256", "node_id_text", "revoked_at")


@admin.register(JoinToken)
class JoinTokenAdmin(ReadOnlyAdmin):
    """Join tokens without their digests and answers."""

    list_display = ("id", "purpose", "node_id_text", "created_at", "expires_at", "used_at", "used_from", "created_by")
    list_filter = ("purpose",)
    exclude = ("digest", "answer")
    actions = ("withdraw",)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is an operator."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Revoke unused tokens of the selected nodes", permissions=["operate"])
    def withdraw(self, request: HttpRequest, queryset: QuerySet[JoinToken]) -> None:
        """Revoke the unused tokens, so that they enroll nothing."""
        for node_id in sorted(set(queryset.values_list("node_id_text", flat=True))):
            try:
                count = tokens.withdraw(node_id, actors.of(request))
            except MirbadError as error:
                self.message_user(request, error.detail, messages.WARNING)
            else:
                self.message_user(request, f"{count} unused token(s) of {node_id} revoked.", messages.SUCCESS)


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    """Leases and the processes that hold them."""

    list_display = ("name", "owner", "expires_at")


@admin.register(Authority)
class AuthorityAdmin(ReadOnlyAdmin):
    """CA certificates without their keys."""

    list_display = ("slot", "sha256", "created_at")
    exclude = ("key_sealed",)


@admin.register(CaRotation)
class CaRotationAdmin(ReadOnlyAdmin):
    """CA rotations without their keys."""

    list_display = ("id", "stage", "started_at", "stage_since", "finished_at", "close_asked_at")
    exclude = ("old_client_key_sealed", "new_client_key_sealed", "old_enroll_key_sealed", "new_enroll_key_sealed")


@admin.register(CaRotationNode)
class CaRotationNodeAdmin(ReadOnlyAdmin):
    """The progress of each node in a CA rotation."""

    list_display = ("rotation", "node", "done_stage", "outcome", "tried_at", "problem")
    list_filter = ("outcome",)


@admin.register(NodeWitness)
class NodeWitnessAdmin(ReadOnlyAdmin):
    """The heads of the audit log that nodes hold."""

    list_display = ("node", "agrees", "at")
    list_filter = ("agrees",)


@admin.register(MasterIdentity)
class MasterIdentityAdmin(ReadOnlyAdmin):
    """The master's identity without its keys."""

    list_display = ("epoch", "instance_id", "fenced_reason", "stood_down_at", "updated_at")
    exclude = ("client_key_sealed", "enroll_key_sealed")


@admin.register(TelemetrySample)
class TelemetrySampleAdmin(ReadOnlyAdmin):
    """Measurements of nodes."""

    list_display = ("node_id_text", "at", "step", "samples")
    list_filter = ("step",)
    search_fields = ("=node_id_text",)
    ordering = ("-at",)


@admin.register(TelemetryProgress)
class TelemetryProgressAdmin(ReadOnlyAdmin):
    """The moments up to which samples have been averaged."""

    list_display = ("step", "until")
