"""Names of queues, channels and keys. All carry the deployment id, so that deployments may share one Redis."""

from dataclasses import dataclass
from typing import Final

RUN_TASK: Final = "fleet.run_turn"
#: Seconds a draft snapshot outlives its last renewal.
DRAFT_TTL_S: Final = 60


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one deployment."""

    deployment_id: str

    @property
    def prefix(self) -> str:
        """What every name begins with; also Celery's key prefix."""
        return f"fleet:{self.deployment_id}:"

    @property
    def turns_queue(self) -> str:
        """Queue of ordinary nudges."""
        return "turns"

    @property
    def suspects_queue(self) -> str:
        """Queue of Turns that lost a worker before."""
        return "suspects"

    @property
    def control_channel(self) -> str:
        """Channel on which workers hear of cancels."""
        return f"{self.prefix}control"

    def turn_channel(self, turn_id: str) -> str:
        """Channel of a Turn's facts and drafts."""
        return f"{self.prefix}turn:{turn_id}"

    def draft_key(self, turn_id: str) -> str:
        """Key of the snapshot for readers that join in mid-iteration."""
        return f"{self.prefix}draft:{turn_id}"
