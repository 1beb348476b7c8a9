"""Pages of the nodes app."""

from django.urls import URLPattern

app_name = "nodes"
urlpatterns: list[URLPattern] = []
