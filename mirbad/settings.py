"""Django settings, all derived from `mirbad.kernel.conf`. Nothing is read from the environment here."""

from pathlib import Path
from typing import Any

import dj_database_url

from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import settings as read

_SETTINGS = read()
_RECOVERING = recovery_mode.is_on(_SETTINGS)
BASE_DIR = Path(__file__).resolve().parent.parent

# A process that does not serve (a check, a schema dump) may run before `make up` created the key.
SECRET_KEY = _SETTINGS.secret_key or "unset"
DEBUG = _SETTINGS.debug
ALLOWED_HOSTS = list(_SETTINGS.names)
# A name with a dot before it stands for all names below it, and itself; '*' trusts no origin.
_ORIGINS = [part for name in _SETTINGS.hosts for part in ([f"*{name}", name[1:]] if name[0] == "." else [name])]
CSRF_TRUSTED_ORIGINS = [
    f"{scheme}://{host}{port}"
    for host in _ORIGINS
    if host != "*"
    for scheme, own in (("http", 80), ("https", 443))
    for port in ("", f":{_SETTINGS.port}")
    if port != f":{own}"
]

INSTALLED_APPS = [
    "channels",
    "mirbad.accounts",  # before auth: its createsuperuser checks every password
    "mirbad.accounts.support.SupportConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_structlog",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "mirbad.web",
    "audit",
    "nodes",
    "models_app",
    "jobs",
    "mirbad.up",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "mirbad.web.csp.ContentSecurityPolicyMiddleware",
    "mirbad.web.transport.SecureCookiesMiddleware",
    "mirbad.api.unstorable.UnstorableTextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "mirbad.recovery_urls" if _RECOVERING else "mirbad.urls"
ASGI_APPLICATION = "mirbad.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "mirbad.web.context.shell",
                "jobs.pages.contexts.fencing.context",
            ]
        },
    }
]

_SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": _SETTINGS.data / "mirbad.sqlite3",
    # Opening the file again for every piece of work costs more than most pieces of work do.
    "CONN_MAX_AGE": 60,
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": (
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA secure_delete=ON;"
        ),
    },
}
DATABASES: dict[str, Any] = {
    "default": dj_database_url.parse(_SETTINGS.database_url, conn_max_age=60, conn_health_checks=True)
    if _SETTINGS.database_url
    else _SQLITE
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# In recovery mode there is one process, and no broker.
REDIS_URL = "" if _RECOVERING else _SETTINGS.redis_url
CHANNEL_LAYERS: dict[str, Any] = (
    {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {"hosts": [REDIS_URL], "prefix": "mirbad"},
        }
    }
    if REDIS_URL
    else {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
)

# Uploaded backups are large and secret: on the disk of the data folder, which is private, not in a /tmp of memory.
_UPLOADS = _SETTINGS.data / "uploads"
FILE_UPLOAD_TEMP_DIR = str(_UPLOADS) if _UPLOADS.is_dir() else None

AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = ["mirbad.accounts.hashing.BoundedArgon2", "mirbad.accounts.hashing.BoundedPBKDF2"]
_RULES = "django.contrib.auth.password_validation."
AUTH_PASSWORD_VALIDATORS: list[dict[str, Any]] = [
    {"NAME": f"{_RULES}MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": f"{_RULES}UserAttributeSimilarityValidator"},
    {"NAME": f"{_RULES}CommonPasswordValidator"},
    {"NAME": f"{_RULES}NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
# Sent over TLS alone, and kept by browsers for half a year.
SECURE_HSTS_SECONDS = 180 * 24 * 3600
SECURE_REFERRER_POLICY = "same-origin"
# The middleware of the content security policy sends it, where browsers respect it.
SECURE_CROSS_ORIGIN_OPENER_POLICY = None
X_FRAME_OPTIONS = "DENY"

CSRF_FAILURE_VIEW = "mirbad.api.errorpages.csrf_failed"
APPEND_SLASH = False

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "/static/"
STATIC_ROOT = _SETTINGS.data / "static"
STATICFILES_DIRS = [BASE_DIR / "mirbad" / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "mirbad.accounts.authentication.AdminTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["mirbad.accounts.permissions.RolePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["mirbad.api.parsers.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "mirbad.api.negotiation.Negotiation",
    "DEFAULT_PAGINATION_CLASS": "mirbad.api.pagination.Page",
    "PAGE_SIZE": 100,
    "DEFAULT_SCHEMA_CLASS": "mirbad.api.schema.ProblemSchema",
    "EXCEPTION_HANDLER": "mirbad.api.problems.handle",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Mirbad",
    "DESCRIPTION": "The admin API of a Mirbad master.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    # Two fields named "state" that mean different things.
    "ENUM_NAME_OVERRIDES": {
        "DestinationKindEnum": "jobs.api.backup_destinations.KIND_NAMES",
        "PlannedActionEnum": "jobs.api.backup_imports.ACTIONS",
        "FitStateEnum": "models_app.api.fit.FIT_STATES",
        "NodeStateEnum": "nodes.api.serializers.NODE_STATES",
        "MasterStateEnum": "nodes.api.serializers.MASTER_STATES",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SERVE_PERMISSIONS": ["mirbad.accounts.permissions.RolePermission"],
}

LOGGING_CONFIG = None
