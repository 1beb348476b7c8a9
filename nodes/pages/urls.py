"""Pages of the nodes app. ``-`` is not a valid node id, so no fixed path hides a node."""

from django.urls import path

from nodes.pages.views import history, join_tokens, nodes, witnesses

app_name = "nodes"
urlpatterns = [
    path("audit/-/witnesses", witnesses.index, name="witnesses"),
    path("audit/-/witnesses/accept", witnesses.accept, name="witnesses-accept"),
    path("nodes", nodes.index, name="list"),
    path("nodes/-/add", join_tokens.add, name="add"),
    path("nodes/-/join/<slug:node_id>", join_tokens.progress, name="join-progress"),
    path("nodes/-/join/<slug:node_id>/withdraw", join_tokens.withdraw, name="withdraw"),
    path("nodes/-/rekey/<slug:node_id>", join_tokens.rekey, name="rekey"),
    path("nodes/<slug:node_id>", nodes.detail, name="detail"),
    path("nodes/<slug:node_id>/approve", nodes.approve, name="approve"),
    path("nodes/<slug:node_id>/reject", nodes.reject, name="reject"),
    path("nodes/<slug:node_id>/undrain", nodes.undrain, name="undrain"),
    path("nodes/<slug:node_id>/save", nodes.save_settings, name="save"),
    path("nodes/<slug:node_id>/history", history.node_history, name="history"),
    path("nodes/<slug:node_id>/<slug:tab>", nodes.detail, name="tab"),
]
