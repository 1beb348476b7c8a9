"""Pages of the audit app."""

from django.urls import path

from audit.pages import views

app_name = "audit"
urlpatterns = [path("audit", views.index, name="list")]
