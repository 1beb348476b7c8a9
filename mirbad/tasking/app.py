"""The Celery application. It only signals; rows in the database decide. `mirbad.celery` adds tasks and beat table."""

import os

from celery import Celery

from mirbad.kernel.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")

PUBLISH_TIMEOUT_SECONDS = 2.0
# One silent retry covers a pooled connection that died with an earlier broker; then the sweep takes over.
PUBLISH_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}


def broker_url(redis_url: str) -> str:
    """Return `redis_url` in Celery's form: ``unix:///path`` becomes ``redis+socket:///path``."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://")
    return redis_url


def _make() -> Celery:
    made = Celery("mirbad", broker=broker_url(settings().redis_url) or None, set_as_current=True)
    made.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_serializer="json",
        accept_content=["json"],
        task_default_queue="mirbad",
        task_publish_retry=True,
        task_publish_retry_policy=PUBLISH_RETRY,
        broker_connection_timeout=PUBLISH_TIMEOUT_SECONDS,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": PUBLISH_TIMEOUT_SECONDS,
            "socket_timeout": PUBLISH_TIMEOUT_SECONDS,
            "health_check_interval": 10,
            "global_keyprefix": "mirbad:",
        },
        worker_pool="threads",
        worker_concurrency=8,
        worker_prefetch_multiplier=4,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        beat_scheduler="celery.beat:Scheduler",
        beat_max_loop_interval=5,
        timezone="UTC",
        enable_utc=True,
    )
    return made


app = _make()
