"""Addresses of the agent's archives."""

from django.urls import path

from mirbad.bundles import views

urlpatterns = [
    path("agent/bundles", views.bundles, name="agent-bundles"),
    path("agent/bundles/<slug:rid>.tar.gz", views.bundle, name="agent-bundle"),
]
