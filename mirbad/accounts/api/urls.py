"""Routes of `/api` in this app."""

from django.urls import path

from mirbad.accounts.api.views import Token, Tokens
from mirbad.api import converters

converters.register()

urlpatterns = [
    path("tokens", Tokens.as_view(), name="api-tokens"),
    path("tokens/<row:row_id>", Token.as_view(), name="api-token"),
]
