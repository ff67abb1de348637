"""Does what time asks for: stops idle sandboxes, archives and deletes stopped ones, ends lives, notes dead
containers."""

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Final, Literal

from fleet_worker.local_daytona.refusals import Refusal
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes

log = logging.getLogger(__name__)
EVERY_S: Final = 2.0

Due = Literal["destroy", "stop", "archive", "died"]


def due(sandbox: Sandbox, now: datetime, *, minute_s: float) -> Due | None:
    """What a sandbox's intervals ask for at this moment."""
    if sandbox.ttl > 0 and (now - sandbox.created).total_seconds() >= sandbox.ttl * minute_s:
        return "destroy"
    if sandbox.state == "started":
        if sandbox.jail is not None and sandbox.jail.gone.is_set():
            return "died"
        idle = (now - sandbox.active).total_seconds()
        return "stop" if 0 < sandbox.autostop * minute_s <= idle and not sandbox.sockets else None
    if sandbox.state in ("stopped", "archived") and sandbox.stopped is not None:
        still = (now - sandbox.stopped).total_seconds()
        if sandbox.autodelete >= 0 and still >= sandbox.autodelete * minute_s:
            return "destroy"
        if sandbox.state == "stopped" and 0 < sandbox.autoarchive * minute_s <= still:
            return "archive"
    return None


async def keep_time(sandboxes: Sandboxes, *, minute_s: float) -> None:
    """Look at every sandbox each two seconds (more often where minutes are short); runs until cancelled."""
    while True:
        await asyncio.sleep(min(EVERY_S, minute_s / 10))
        now = datetime.now(UTC)
        for sandbox in sandboxes:
            wanted = due(sandbox, now, minute_s=minute_s)
            if wanted is not None:
                log.info("sandbox.time_up", extra={"sandbox": sandbox.id, "due": wanted})
                with contextlib.suppress(Refusal):
                    await _do(sandboxes, sandbox, wanted)


async def _do(sandboxes: Sandboxes, sandbox: Sandbox, wanted: Due) -> None:
    if wanted == "destroy":
        await sandboxes.destroy(sandbox)
    elif wanted == "archive":
        sandbox.change("archived", desired="archived")
    else:
        await sandboxes.halt(sandbox, "stopped")
        if sandbox.ephemeral:
            await sandboxes.destroy(sandbox)
