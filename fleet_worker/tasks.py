"""The one Celery task. Its argument is a Turn's id; everything else is read from SQL, nothing is returned."""

from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from fleet_shared.messaging.names import RUN_TASK


class BusyWorker(Exception):
    """This worker takes no more Turns; another one will."""


def register_tasks(app: Celery, run_turn: Callable[[str], None]) -> None:
    """Register the task that runs a Turn with `run_turn`, which raises BusyWorker when it takes no more."""

    @app.task(name=RUN_TASK)  # type: ignore[untyped-decorator]  # celery has no types
    def run(turn_id: str) -> None:
        try:
            run_turn(turn_id)
        except BusyWorker:
            raise Reject("the worker drains", requeue=True) from None
