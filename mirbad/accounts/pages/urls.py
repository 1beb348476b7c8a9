"""Pages of admin tokens."""

from django.urls import path

from mirbad.accounts.pages import views

app_name = "accounts"
urlpatterns = [
    path("tokens", views.index, name="tokens"),
    path("tokens/new", views.create, name="token-new"),
    path("tokens/<int:token_id>/revoke", views.revoke, name="token-revoke"),
]
