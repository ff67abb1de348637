"""The deployment's id: a UUID of the first migration, part of every name in Redis and every label in Daytona."""

from sqlalchemy import select

from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import deployment


def deployment_id(tx: Transaction) -> str:
    """The id of this deployment."""
    found: str = tx.execute(select(deployment.c.id)).scalar_one()
    return found
