"""Trouble on demand, for tests: switches that stay until changed, and rules that make the next matching requests
fail."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, get_args

from aiohttp import web

from fleet_worker.local_daytona.refusals import DaemonRefusal, Refusal, bad_gateway

Kind = Literal[
    "rate_limit", "quota", "forbidden", "unauthorized", "conflict", "not_found", "server_error", "unavailable",
    "bad_gateway", "hang", "disconnect",
]  # fmt: skip
QUOTA_TEXT: Final = "Total CPU limit exceeded. Maximum allowed: {limit}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Makes `times` requests of one operation (a route's name, `control`, `toolbox` or `any`) fail; -1 is for ever.

    `skip` lets that many pass first. `after` carries the request out and then withholds its reply. `seconds` is how
    long `hang` waits before it goes on, and what `rate_limit` tells the client to wait.
    """

    operation: str
    kind: Kind
    times: int = 1
    skip: int = 0
    after: bool = False
    seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What is wrong with the provider right now. Times in the unit of their name; zero and false are healthy."""

    latency_ms: float = 0.0
    """Delay of every byte, each way, frames of WebSockets included."""
    create_delay_s: float = 0.0
    """A new sandbox needs this long to start."""
    create_hold_s: float = 30.0
    """The reply to create is held at most this long while the sandbox starts."""
    create_hang_s: float = 0.0
    """The reply to create is withheld this long after the sandbox runs."""
    create_state: Literal["started", "creating", "error", "build_failed", "stopped", "archived"] = "started"
    """The state a new sandbox ends up in."""
    delete_delay_s: float = 0.0
    """A deleted sandbox is `destroying` this long; a second delete meanwhile is a conflict."""
    list_lag_s: float = 0.0
    """List shows the world as it was this long ago."""
    quota_sandboxes: int = 0
    """More running sandboxes than this are refused; 0 is no limit."""
    old_daemon: bool = False
    """The toolbox does not know `create-connect`."""
    connected_delay_s: float = 0.0
    """A PTY's "connected" comes this long after the upgrade."""
    exit_loses_output: bool = False
    """A PTY's end drops what its clients have not been sent."""
    drop_sockets_mean_s: float = 0.0
    """Every WebSocket is cut after a random time with this mean."""
    drop_sockets_after_frames: int = 0
    """Every WebSocket is cut after it sent this many frames."""


class Faults:
    """The current switches and rules of one server."""

    def __init__(self) -> None:
        self.switches = Switches()
        self.rules: list[Rule] = []

    def describe(self) -> dict[str, Any]:
        """Everything that is set, as JSON values."""
        return {**asdict(self.switches), "rules": [asdict(rule) for rule in self.rules]}

    def change(self, wanted: dict[str, Any]) -> None:
        """Set the named switches; `rules` replaces all rules, `add_rules` adds some. Raises `ValueError` on
        unknown names."""
        wanted = dict(wanted)
        rules = [_rule(given) for given in wanted.pop("rules")] if "rules" in wanted else list(self.rules)
        rules += [_rule(given) for given in wanted.pop("add_rules", [])]
        unknown = set(wanted) - {field.name for field in fields(Switches)}
        if unknown:
            raise ValueError(f"unknown faults: {', '.join(sorted(unknown))}")
        self.switches = replace(self.switches, **wanted)
        self.rules = rules

    def reset(self) -> None:
        """Be healthy again."""
        self.switches = Switches()
        self.rules = []

    def take(self, operation: str, part: str) -> Rule | None:
        """The rule the next request of an operation falls under, used up by one."""
        for number, rule in enumerate(self.rules):
            if rule.operation not in (operation, part, "any") or rule.times == 0:
                continue
            if rule.skip:
                self.rules[number] = replace(rule, skip=rule.skip - 1)
                return None
            if rule.times > 0:
                self.rules[number] = replace(rule, times=rule.times - 1)
            return rule
        return None

    def socket_life_s(self) -> float | None:
        """How long the next WebSocket may live."""
        mean = self.switches.drop_sockets_mean_s
        return random.expovariate(1 / mean) if mean > 0 else None


def _rule(given: dict[str, Any]) -> Rule:
    unknown = set(given) - {field.name for field in fields(Rule)}
    if unknown or given.get("kind") not in get_args(Kind):
        raise ValueError(f"not a rule: {given}")
    return Rule(**given)


def quota_refusal(limit: int) -> Refusal:
    """What create says when the organisation has no room left."""
    return Refusal(400, QUOTA_TEXT.format(limit=limit))


def fail(rule: Rule, request: web.Request, operation: str, *, in_toolbox: bool) -> web.StreamResponse:
    """The failure a rule asks for: returned or raised. A disconnect closes the connection without a reply."""
    if rule.kind == "disconnect":
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)
    if rule.kind == "bad_gateway":
        return bad_gateway()
    status, message = {
        "rate_limit": (429, "ThrottlerException: Too Many Requests"),
        "quota": (400, QUOTA_TEXT.format(limit=10)),
        "forbidden": (403, "Forbidden resource"),
        "unauthorized": (401, "Unauthorized"),
        "conflict": (409, "Sandbox state change in progress"),
        "not_found": (404, "Not Found"),
        "server_error": (500, "Internal server error"),
        "unavailable": (503, "Service Unavailable"),
    }[rule.kind]
    if in_toolbox:
        raise DaemonRefusal(status, message)
    raise Refusal(status, message, headers=_throttle_headers(operation, rule.seconds) if status == 429 else None)


def _throttle_headers(operation: str, seconds: float) -> dict[str, str]:
    throttler = {"create": "sandbox-create"}.get(
        operation, "sandbox-lifecycle" if operation in ("start", "stop", "delete") else "authenticated"
    )
    wait = str(max(1, round(seconds)))
    return {
        f"Retry-After-{throttler}": wait,
        f"X-RateLimit-Limit-{throttler}": "300",
        f"X-RateLimit-Remaining-{throttler}": "0",
        f"X-RateLimit-Reset-{throttler}": wait,
    }


def fault_middleware(faults: Faults, untouched: Iterable[str]) -> Any:
    """Applies the rules to every request but those of the `untouched` operations."""
    spared = frozenset(untouched)

    @web.middleware
    async def apply(request: web.Request, handler: Any) -> web.StreamResponse:
        operation = request.match_info.route.name or ""
        in_toolbox = request.path.startswith("/toolbox/")
        rule = None if operation in spared else faults.take(operation, "toolbox" if in_toolbox else "control")
        answered: web.StreamResponse
        if rule is None:
            answered = await handler(request)
            return answered
        if rule.kind == "hang" and not rule.after:
            await asyncio.sleep(rule.seconds)
            answered = await handler(request)
            return answered
        if rule.after:
            answered = await handler(request)
            if rule.kind == "hang":
                await asyncio.sleep(rule.seconds)
                return answered
        return fail(rule, request, operation, in_toolbox=in_toolbox)

    return apply
