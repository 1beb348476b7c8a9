"""The Celery application: a doorbell for durable operations, and the literal table of ticks."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
