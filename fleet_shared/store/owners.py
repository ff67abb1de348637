"""Owners and their tokens. Secrets are random, shown once and stored as digests."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import insert, select, update

from fleet_shared.domain.errors import InvalidInput, NotFound
from fleet_shared.domain.ids import new_id
from fleet_shared.store.engine import Transaction, database_now
from fleet_shared.store.tables import owner, token

SECRET_PREFIX: Final = "fleet_"


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    owner_id: str
    owner_name: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


def create_token(tx: Transaction, name: str, *, owner_name: str | None = None) -> str:
    """A new token's secret (256 random bits), for the owner of that name, who is created when new.

    Raises InvalidInput when a live token has the name.
    """
    if not name.strip() or len(name) > 255:
        raise InvalidInput("A token needs a name of 1 to 255 characters.")
    if _live_token(tx, name) is not None:
        raise InvalidInput(f"There is a token named {name} already; rotate or revoke it, or choose another name.")
    return _insert_token(tx, name, _ensure_owner(tx, owner_name or name))


def rotate_token(tx: Transaction, name: str) -> str:
    """A new secret for the live token of that name; the old one stops working. Raises NotFound."""
    owner_id = revoke_token(tx, name)
    return _insert_token(tx, name, owner_id)


def revoke_token(tx: Transaction, name: str) -> str:
    """Revoke the live token of that name; the owner's id. Raises NotFound."""
    live = _live_token(tx, name)
    if live is None:
        raise NotFound(detail=f"There is no live token named {name}.")
    tx.execute(update(token).where(token.c.id == live.id).values(revoked_at=database_now(tx)))
    return live.owner_id


def tokens(tx: Transaction) -> list[Token]:
    """Every token, newest first, revoked ones too."""
    return [_token(row) for row in tx.execute(_SELECT.order_by(token.c.created_at.desc(), token.c.id))]


def token_of_secret(tx: Transaction, secret: str) -> Token | None:
    """The live token of a secret."""
    row = tx.execute(
        _SELECT.where(token.c.secret_sha256 == digest_of_secret(secret), token.c.revoked_at.is_(None))
    ).one_or_none()
    return _token(row) if row is not None else None


def live_token_ids(tx: Transaction, ids: set[str]) -> set[str]:
    """Those of `ids` that are not revoked."""
    if not ids:
        return set()
    return set(tx.execute(select(token.c.id).where(token.c.id.in_(ids), token.c.revoked_at.is_(None))).scalars())


def digest_of_secret(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


_SELECT: Final = select(
    token.c.id, token.c.owner_id, owner.c.name.label("owner_name"), token.c.name, token.c.created_at, token.c.revoked_at
).join(owner, owner.c.id == token.c.owner_id)


def _token(row: object) -> Token:
    return Token(**row._mapping)  # type: ignore[attr-defined]  # a SQLAlchemy Row


def _live_token(tx: Transaction, name: str) -> Token | None:
    row = tx.execute(_SELECT.where(token.c.name == name, token.c.revoked_at.is_(None))).one_or_none()
    return _token(row) if row is not None else None


def _insert_token(tx: Transaction, name: str, owner_id: str) -> str:
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    tx.execute(
        insert(token).values(
            id=new_id(),
            owner_id=owner_id,
            name=name,
            secret_sha256=digest_of_secret(secret),
            created_at=database_now(tx),
        )
    )
    return secret


def _ensure_owner(tx: Transaction, name: str) -> str:
    known: str | None = tx.execute(select(owner.c.id).where(owner.c.name == name)).scalar_one_or_none()
    if known is not None:
        return known
    owner_id = new_id()
    tx.execute(insert(owner).values(id=owner_id, name=name, created_at=database_now(tx)))
    return owner_id
