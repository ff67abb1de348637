"""Every change of a Turn's status, written together with the facts that tell it.

`domain.turn.advance` decides, the row's lock makes it true for everybody, the facts are published after the commit.
Used by web (cancel, the cheap half of the sweep) and by the worker (claim, renewal, hand-over, the end).
"""

from fleet_shared.ledger.changes import Ledger
from fleet_shared.ledger.claims import Claimed
from fleet_shared.ledger.commit import Commit, CommitArtifact, NotHeld
from fleet_shared.ledger.sweep import Sweep, SweepReport

__all__ = ["Claimed", "Commit", "CommitArtifact", "Ledger", "NotHeld", "Sweep", "SweepReport"]
