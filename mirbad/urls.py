"""The URL table of the master: pages, `/api`, the Django admin, health."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from mirbad import dashboard, health, home
from mirbad.accounts.login import Login, Logout, from_admin
from mirbad.accounts.permissions import require_role
from mirbad.api import errorpages
from mirbad.kernel.roles import VIEWER

handler400 = errorpages.bad_request
handler403 = errorpages.forbidden
handler404 = errorpages.not_found
handler500 = errorpages.fault

_docs = SpectacularSwaggerSplitView.as_view(url_name="api-schema", template_name="api/docs.html")

api: list[URLPattern | URLResolver] = [
    path("schema", SpectacularAPIView.as_view(), name="api-schema"),
    path("docs", require_role(VIEWER)(_docs), name="api-docs"),
    path("", include("mirbad.accounts.api.urls")),
    path("", include("audit.api.urls")),
    path("", include("nodes.api.urls")),
    path("", include("models_app.api.urls")),
    path("", include("jobs.api.urls")),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.Metrics.as_view(), name="metrics"),
    path("", include("mirbad.bundles.urls")),
    path("login", Login.as_view(), name="login"),
    path("logout", Logout.as_view(), name="logout"),
    path("api/", include(api)),
    path("admin/login/", from_admin),
    path("admin/", admin.site.urls),
    path("", home.overview, name="home"),
    path("dashboard", dashboard.page, name="dashboard"),
    path("monitoring", dashboard.monitoring, name="monitoring"),
    path("", include("mirbad.accounts.pages.urls")),
    path("", include("audit.pages.urls")),
    path("", include("nodes.pages.urls")),
    path("", include("models_app.pages.urls")),
    path("", include("jobs.pages.urls")),
]
