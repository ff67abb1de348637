"""Plain values that go in and out of the Daytona adapter."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Account:
    """Where Daytona is and who we are."""

    api_key: str = field(repr=False)
    api_url: str | None = None
    target: str | None = None
    organization_id: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a sandbox is created. Intervals are minutes; `network` is none, allowlist or full."""

    name: str
    labels: Mapping[str, str]
    auto_stop_min: int
    auto_delete_min: int
    snapshot: str | None = None
    network: str = "none"
    allowlist: str = ""


@dataclass(frozen=True, slots=True)
class KnownSandbox:
    """A sandbox as the provider lists it."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
