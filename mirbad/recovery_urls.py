"""The URL table of the recovery mode: log-in, the page of the recovery, health. Nothing else is even routable."""

from django.urls import URLPattern, URLResolver, path, re_path

from jobs.pages.views import backup_recovery as recovery
from mirbad import health
from mirbad.accounts.login import Login, Logout
from mirbad.api import errorpages

handler400 = errorpages.bad_request
handler403 = errorpages.forbidden
handler404 = errorpages.not_found
handler500 = errorpages.fault

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", recovery.readyz, name="readyz"),
    path("login", Login.as_view(), name="login"),
    path("logout", Logout.as_view(), name="logout"),
    path("backup", recovery.page, name="backup-recovery"),
    path("backup/recover/upload", recovery.upload, name="backup-recovery-upload"),
    path("backup/recover/install", recovery.install, name="backup-recovery-install"),
    path("backup/recovered", recovery.restarting, name="backup-recovered"),
    re_path(r"^(?:api|metrics|agent/bundles)(?![^/])", recovery.refuse),
    path("", recovery.elsewhere, name="home"),
    re_path(r"", recovery.elsewhere),
]
