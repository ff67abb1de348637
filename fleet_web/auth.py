"""Who asks: bearer tokens of owners, looked up in SQL and remembered for two seconds."""

import threading
import time
from dataclasses import dataclass
from typing import Final

from fleet_shared.domain.errors import Unauthorized
from fleet_shared.store import Database
from fleet_shared.store.owners import digest_of_secret, token_of_secret

#: Seconds a token is believed without asking the database again; a revoked one stops within this time.
BELIEVED_S: Final = 2.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a request speaks for."""

    owner_id: str
    token_id: str


class Tokens:
    """Checks bearer tokens. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Caller]] = {}

    def caller(self, authorization: str | None) -> Caller:
        """Whom an `Authorization` header speaks for. Raises Unauthorized."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise Unauthorized
        digest = digest_of_secret(secret)
        now = time.monotonic()
        with self._lock:
            known = self._known.get(digest)
        if known is not None and now - known[0] < BELIEVED_S:
            return known[1]
        token = self._database.run(lambda tx: token_of_secret(tx, secret))
        if token is None:
            with self._lock:
                self._known.pop(digest, None)
            raise Unauthorized("The token is not known or was revoked.")
        caller = Caller(token.owner_id, token.id)
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = (now, caller)
        return caller
