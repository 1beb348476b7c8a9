"""The Celery application: a doorbell for durable operations, and the literal table of ticks."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
