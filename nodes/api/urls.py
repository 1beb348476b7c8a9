"""Routes of `/api` in this app."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
