"""The values an owner chose for settings, changed only with the right revision."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select, update

from fleet_shared.domain.errors import Conflict
from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import owner, owner_setting


@dataclass(frozen=True, slots=True)
class Preferences:
    """An owner's values by setting key; revision 0 when there are none yet."""

    revision: int
    changes: dict[str, Any]


def get_preferences(tx: Transaction, owner_id: str) -> Preferences:
    """The owner's values."""
    query = select(owner_setting.c.revision, owner_setting.c.changes).where(owner_setting.c.owner_id == owner_id)
    row = tx.execute(query).one_or_none()
    return Preferences(row.revision, json.loads(row.changes)) if row is not None else Preferences(0, {})


def save_preferences(tx: Transaction, owner_id: str, *, revision: int, changes: dict[str, Any]) -> Preferences:
    """Replace the owner's values when `revision` is the present one. Raises Conflict (revision_conflict)."""
    tx.execute(select(owner.c.id).where(owner.c.id == owner_id).with_for_update())
    present = get_preferences(tx, owner_id)
    if present.revision != revision:
        raise Conflict("revision_conflict", f"The settings are at revision {present.revision}; read them again.")
    values = {"revision": revision + 1, "changes": json.dumps(changes)}
    if present.revision == 0:
        tx.execute(insert(owner_setting).values(owner_id=owner_id, **values))
    else:
        tx.execute(update(owner_setting).where(owner_setting.c.owner_id == owner_id).values(values))
    return Preferences(revision + 1, changes)


def lock_owner(tx: Transaction, owner_id: str) -> None:
    """Lock the owner's row until the end of the transaction; the first lock of every transaction that counts."""
    tx.execute(select(owner.c.id).where(owner.c.id == owner_id).with_for_update(key_share=True))
