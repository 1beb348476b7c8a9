"""Pages of the models app."""

from django.urls import URLPattern

app_name = "models"
urlpatterns: list[URLPattern] = []
