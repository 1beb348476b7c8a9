"""Nodes in the Django admin: looking, admission, draining. Sealed keys and token digests are never shown."""

from collections.abc import Callable

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from mirbad.accounts import actors
from mirbad.api.looking import LookingAdmin
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
    RevokedKey,
    TelemetryProgress,
    TelemetrySample,
)


@admin.register(Node)
class NodeAdmin(LookingAdmin):
    """Machines, as wanted and as seen. What else may be done with one is added by the apps above."""

    list_display = ("id", "display_name", "lifecycle", "draining", "reachability", "address", "last_seen_at")
    list_filter = ("lifecycle", "reachability", "draining")
    search_fields = ("id", "display_name", "address")
    actions: tuple[str, ...] = ("approve", "reject", "drain", "undrain")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Operators."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Approve the chosen nodes…", permissions=["operate"])
    def approve(self, request: HttpRequest, queryset: QuerySet[Node]) -> HttpResponse | None:
        """Admit them, each by the key that was shown on the page before."""
        if "seen" not in request.POST:
            return self._ask(request, queryset, "approve")

        def by_the_key_that_was_seen(node_id: str, actor: Actor) -> Node:
            return registry.approve(node_id, request.POST.get(f"key-{node_id}", ""), actor)

        self._each(request, queryset, by_the_key_that_was_seen, "is approved")
        return None

    @admin.action(description="Reject the chosen nodes…", permissions=["operate"])
    def reject(self, request: HttpRequest, queryset: QuerySet[Node]) -> HttpResponse | None:
        """Forget their requests and keys, once that was confirmed."""
        if "seen" not in request.POST:
            return self._ask(request, queryset, "reject")
        self._each(request, queryset, registry.reject, "is rejected; its id may be used again")
        return None

    @admin.action(description="Drain the chosen nodes", permissions=["operate"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """No new work for them."""
        self._each(request, queryset, registry.drain, "is draining")

    @admin.action(description="Undrain the chosen nodes", permissions=["operate"])
    def undrain(self, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        """Work for them again."""
        self._each(request, queryset, registry.undrain, "takes work again")

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
class GpuAdmin(LookingAdmin):
    """GPUs by UUID."""

    list_display = ("uuid", "node", "index", "name", "memory_bytes", "present")
    list_select_related = ("node",)


@admin.register(NodeCondition)
class NodeConditionAdmin(LookingAdmin):
    """Reasons for which nodes read Degraded."""

    list_display = ("node", "code", "subject", "detail", "source", "since")
    list_filter = ("code", "source")
    list_select_related = ("node",)


@admin.register(NodePin)
class NodePinAdmin(LookingAdmin):
    """Keys that nodes must show."""

    list_display = ("node", "slot", "spki_sha256", "cert_not_after")
    list_select_related = ("node",)


@admin.register(RevokedKey)
class RevokedKeyAdmin(LookingAdmin):
    """Keys that never come back."""

    list_display = ("spki_sha256", "node_id_text", "revoked_at")


@admin.register(JoinToken)
class JoinTokenAdmin(LookingAdmin):
    """Join tokens without their digests and answers."""

    list_display = ("id", "purpose", "node_id_text", "created_at", "expires_at", "used_at", "used_from", "created_by")
    list_filter = ("purpose",)
    exclude = ("digest", "answer")
    actions = ("withdraw",)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Operators."""
        return has_role(request.user, OPERATOR)

    @admin.action(description="Withdraw the unused tokens of the chosen nodes", permissions=["operate"])
    def withdraw(self, request: HttpRequest, queryset: QuerySet[JoinToken]) -> None:
        """They enroll nobody from now on."""
        for node_id in sorted(set(queryset.values_list("node_id_text", flat=True))):
            try:
                count = tokens.withdraw(node_id, actors.of(request))
            except MirbadError as error:
                self.message_user(request, error.detail, messages.WARNING)
            else:
                self.message_user(request, f"{count} unused token(s) of {node_id} withdrawn.", messages.SUCCESS)


@admin.register(Lease)
class LeaseAdmin(LookingAdmin):
    """Which process holds what."""

    list_display = ("name", "owner", "expires_at")


@admin.register(Authority)
class AuthorityAdmin(LookingAdmin):
    """CA certificates without their keys."""

    list_display = ("slot", "sha256", "created_at")
    exclude = ("key_sealed",)


@admin.register(CaRotation)
class CaRotationAdmin(LookingAdmin):
    """Rotations of the CA without their keys."""

    list_display = ("id", "stage", "started_at", "stage_since", "finished_at", "close_asked_at")
    exclude = ("old_client_key_sealed", "new_client_key_sealed", "old_enroll_key_sealed", "new_enroll_key_sealed")


@admin.register(CaRotationNode)
class CaRotationNodeAdmin(LookingAdmin):
    """How far each node has come in a rotation."""

    list_display = ("rotation", "node", "done_stage", "outcome", "tried_at", "problem")
    list_filter = ("outcome",)


@admin.register(MasterIdentity)
class MasterIdentityAdmin(LookingAdmin):
    """The master's identity without its keys."""

    list_display = ("epoch", "instance_id", "fenced_reason", "updated_at")
    exclude = ("client_key_sealed", "enroll_key_sealed")


@admin.register(TelemetrySample)
class TelemetrySampleAdmin(LookingAdmin):
    """What nodes measured."""

    list_display = ("node_id_text", "at", "step", "samples")
    list_filter = ("step",)
    search_fields = ("=node_id_text",)
    ordering = ("-at",)


@admin.register(TelemetryProgress)
class TelemetryProgressAdmin(LookingAdmin):
    """Up to when samples were averaged."""

    list_display = ("step", "until")
