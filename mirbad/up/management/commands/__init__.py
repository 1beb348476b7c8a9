"""``manage.py status``, ``admin-password``, ``api-key``, ``snapshot``."""
