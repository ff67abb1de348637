"""The SQL store: the truth for states, events and results. The only room (with `blobs`) that knows SQLAlchemy.

`Database.run(work)` and `Database.begin()` give a `Transaction`; the modules beside this one hold plain query functions
that take it first. Lock order everywhere: owner, Session, Turns ascending by id, then the rest.
"""

from fleet_shared.store.engine import Database, Transaction, database_now

__all__ = ["Database", "Transaction", "database_now"]
