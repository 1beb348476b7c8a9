"""``/api/tokens``: admin tokens, for owners."""

from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.accounts import tokens
from mirbad.accounts.api.serializers import NewTokenSerializer, TokenInputSerializer, TokenSerializer
from mirbad.accounts.models import AdminToken
from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.serializers import read
from mirbad.kernel.roles import OWNER


class Tokens(AdminView):
    """Admin tokens."""

    pagination_class = Page
    read_role = OWNER
    required_role = OWNER
    audited = {"POST": "admin-token"}

    @extend_schema(operation_id="tokens_list", responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List all tokens, newest first; never their secrets."""
        pages = self.pagination_class()
        rows = pages.paginate_queryset(AdminToken.objects.select_related("owner"), request, view=self)
        return pages.get_paginated_response(printing.rows(TokenSerializer, rows or []))

    @extend_schema(operation_id="tokens_create", request=TokenInputSerializer, responses={201: NewTokenSerializer})
    def post(self, request: Request) -> Response:
        """Create a token. Only this response contains its secret."""
        owner = request.user if isinstance(request.user, User) else None
        token, secret = tokens.create(**read(TokenInputSerializer, request.data), actor=self.actor, owner=owner)
        return Response({**TokenSerializer(token).data, "secret": secret}, status=201)


class Token(AdminView):
    """One admin token."""

    read_role = OWNER
    required_role = OWNER
    audited = {"DELETE": "admin-token"}

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def delete(self, request: Request, row_id: int) -> Response:
        """Revoke a token at once."""
        tokens.revoke(row_id, self.actor)
        return Response(status=204)
