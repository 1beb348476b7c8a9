"""Pages of the nodes app. ``-`` is no node id, so nothing of ours hides a node."""

from django.urls import path

from nodes.pages import telemetry, views

app_name = "nodes"
urlpatterns = [
    path("nodes", views.index, name="list"),
    path("nodes/-/add", views.add, name="add"),
    path("nodes/-/join/<slug:node_id>", views.join_progress, name="join-progress"),
    path("nodes/-/join/<slug:node_id>/withdraw", views.withdraw, name="withdraw"),
    path("nodes/-/rekey/<slug:node_id>", views.rekey, name="rekey"),
    path("nodes/<slug:node_id>", views.detail, name="detail"),
    path("nodes/<slug:node_id>/approve", views.approve, name="approve"),
    path("nodes/<slug:node_id>/reject", views.reject, name="reject"),
    path("nodes/<slug:node_id>/drain", views.drain, name="drain"),
    path("nodes/<slug:node_id>/undrain", views.undrain, name="undrain"),
    path("nodes/<slug:node_id>/save", views.save_settings, name="save"),
    path("nodes/<slug:node_id>/history", telemetry.node_history, name="history"),
    path("nodes/<slug:node_id>/<slug:tab>", views.detail, name="tab"),
]
