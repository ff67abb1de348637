"""Heartbeat rows of worker processes."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update

from fleet_shared.store.engine import Transaction, database_now
from fleet_shared.store.tables import worker

#: A worker without a beat for this long counts as gone (http-api.md, /health/ready).
ALIVE_S: Final = 45


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker process as its last heartbeat told."""

    id: str
    name: str
    started_at: datetime
    beat_at: datetime
    draining: bool
    counters: dict[str, Any]


def beat(tx: Transaction, *, worker_id: str, name: str, draining: bool, counters: dict[str, Any]) -> None:
    """Renew a worker's row, or write its first one."""
    now = database_now(tx)
    values = {"beat_at": now, "draining": draining, "counters": json.dumps(counters)}
    renewed = tx.execute(update(worker).where(worker.c.id == worker_id).values(values))
    if renewed.rowcount == 0:
        tx.execute(insert(worker).values(id=worker_id, name=name, started_at=now, **values))


def leave(tx: Transaction, worker_id: str) -> None:
    """Remove the row of a worker that stops."""
    tx.execute(delete(worker).where(worker.c.id == worker_id))


def count_alive(tx: Transaction) -> int:
    """How many workers have beaten lately."""
    since = database_now(tx) - timedelta(seconds=ALIVE_S)
    return tx.execute(select(func.count()).where(worker.c.beat_at >= since)).scalar_one()


def workers(tx: Transaction) -> list[WorkerRow]:
    """Every worker row, by name."""
    query = select(worker).order_by(worker.c.name, worker.c.id)
    return [
        WorkerRow(row.id, row.name, row.started_at, row.beat_at, row.draining, json.loads(row.counters))
        for row in tx.execute(query)
    ]


def forget_silent(tx: Transaction, *, older_than_s: float) -> int:
    """Remove rows of workers that have been silent for long; how many."""
    since = database_now(tx) - timedelta(seconds=older_than_s)
    return tx.execute(delete(worker).where(worker.c.beat_at < since)).rowcount
