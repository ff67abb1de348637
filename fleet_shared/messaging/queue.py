"""The Celery application: one place defines the broker's options for web, worker and Flower (facts: a process with
another visibility timeout would redeliver everybody's running tasks).

A message is a nudge with a Turn's id. It may be lost, doubled or late; the SQL row decides.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from celery import Celery
from kombu.entity import Queue
from kombu.exceptions import KombuError

from fleet_shared.domain.ids import new_id
from fleet_shared.messaging.names import RUN_TASK, Names
from fleet_shared.messaging.redis import REDIS_ERRORS
from fleet_shared.settings import Role

#: Seconds until the broker redelivers an unacknowledged message: above the longest Turn, recovery does not rely on it.
VISIBILITY_TIMEOUT_S: Final = 4 * 14_400

Nudge = Callable[[str], bool]


def make_celery(redis_url: str, names: Names, role: Role) -> Celery:
    """The application for a role. Nothing connects before it is used."""
    app = Celery("fleet")
    is_web = role is Role.WEB
    app.conf.update(
        broker_url=_broker_url(redis_url),
        result_backend=None,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        event_serializer="json",
        task_default_queue=names.turns_queue,
        task_create_missing_queues=False,
        task_queues=[Queue(name) for name in (names.turns_queue, names.suspects_queue)],  # type: ignore[no-untyped-call]
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None if role is Role.WORKER else 3,
        broker_pool_limit=10 if role is Role.FLOWER else 1,
        broker_pool_acquire_timeout=2 if is_web else None,
        task_publish_retry=False,
        broker_transport_options={
            "global_keyprefix": names.prefix,
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "socket_timeout": 2 if is_web else 10,
            "socket_connect_timeout": 2 if is_web else 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "priority_steps": [0],
            "client_name": f"fleet-celery-{role}",
        },
        worker_send_task_events=True,
        task_send_sent_event=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
        timezone="UTC",
    )
    return app


def make_nudge(app: Celery, names: Names) -> Nudge:
    """A function that sends a nudge for a Turn; False when it could not be sent, which loses nothing."""

    def nudge(turn_id: str) -> bool:
        with contextlib.suppress(KombuError, *REDIS_ERRORS):
            app.send_task(
                RUN_TASK,
                args=(turn_id,),
                queue=names.turns_queue,
                task_id=new_id(),
                retry=False,
                ignore_result=True,
                argsrepr="(turn)",
                kwargsrepr="{}",
            )
            return True
        return False

    return nudge


def _broker_url(redis_url: str) -> str:
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://").replace("?db=", "?virtual_host=")
    return redis_url
