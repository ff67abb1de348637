"""What the requests of one web process share, built once per process."""

from dataclasses import dataclass

from fleet_shared.ledger import Ledger, Sweep
from fleet_shared.messaging.hub import Hub
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.queue import Nudge
from fleet_shared.messaging.redis import RedisClient
from fleet_shared.settings import LoadedSettings, Models, Process
from fleet_shared.store import Database
from fleet_web.auth import Tokens
from fleet_web.dispatch import Dispatcher


@dataclass(frozen=True, slots=True)
class Parts:
    """Handed to every blueprint when the application is made."""

    process: Process
    loaded: LoadedSettings
    models: Models
    names: Names
    database: Database
    redis: RedisClient
    publisher: LivePublisher
    nudge: Nudge
    ledger: Ledger
    sweep: Sweep
    hub: Hub
    dispatcher: Dispatcher
    tokens: Tokens
