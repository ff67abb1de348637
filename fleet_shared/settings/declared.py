"""Every setting of `GET /api/settings`, declared once: key, type, scope, default, bounds, help (turn.md, limits)."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

Scope = Literal["owner", "operator"]
MEBIBYTE: Final = 1024 * 1024
MEGABYTE: Final = 1_000_000


def _setting(
    default: Any,
    help_: str,
    *,
    scope: Scope = "owner",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"help": help_, "scope": scope, "minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class RlmSettings:
    """Bounds of the reasoning loop."""

    recursion_enabled: bool = _setting(True, "Child RLMs (rlm_query) may be used.")
    max_iterations: int = _setting(20, "Iterations per Turn.", minimum=1, maximum=100)
    cell_timeout_s: int = _setting(120, "Seconds one cell may run, without waiting for tools.", minimum=1, maximum=3600)
    max_sub_lm_calls: int = _setting(100, "Calls of llm_query per Turn.", minimum=0, maximum=5000)
    max_tool_calls: int = _setting(1000, "Tool calls per Turn.", minimum=1, maximum=20_000)
    max_children: int = _setting(8, "Child RLMs per Turn.", minimum=0, maximum=64)
    max_parallel_children: int = _setting(4, "Child RLMs at once.", minimum=1, maximum=8)
    max_depth: int = _setting(1, "Levels of child RLMs.", minimum=0, maximum=2)
    child_sandbox: str = _setting("shared", "Where children run.", choices=("shared", "own"))
    max_tokens_total: int = _setting(0, "Tokens per Turn; 0 is no limit.", minimum=0)
    max_cost_usd: float = _setting(0.0, "US dollars per Turn; 0 is no limit.", minimum=0)
    max_output_chars: int = _setting(
        6000, "Characters of a cell's output that go back to the model.", minimum=200, maximum=20_000
    )


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Bounds of a Run."""

    timeout_s: int = _setting(1800, "Seconds from the first claim to the end of a Turn.", minimum=5, maximum=14_400)
    max_queue_s: int = _setting(3600, "Seconds a Turn waits for its first claim.", minimum=1, maximum=86_400)
    lease_s: int = _setting(45, "Seconds a worker holds a Turn without renewal.", scope="operator", minimum=1)
    max_cell_event_bytes: int = _setting(
        MEBIBYTE, "Bytes of a cell's output kept as events.", minimum=1024, maximum=10 * MEBIBYTE
    )


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Sandboxes of this deployment."""

    create_timeout_s: int = _setting(90, "Seconds to wait for a new sandbox.", scope="operator", minimum=1)
    max_warm: int = _setting(8, "Idle sandboxes kept warm.", scope="operator", minimum=0)
    network: str = _setting(
        "none", "What sandboxes may reach.", scope="operator", choices=("none", "allowlist", "full")
    )
    network_allowlist: str = _setting("", "Comma-separated networks (CIDR) for `allowlist`.", scope="operator")
    auto_stop_min: int = _setting(15, "Idle minutes until the provider stops a sandbox.", scope="operator", minimum=1)
    auto_delete_min: int = _setting(
        60, "Minutes until the provider deletes a stopped sandbox.", scope="operator", minimum=0
    )


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Sizes of files."""

    max_attachment_bytes: int = _setting(200 * MEGABYTE, "Bytes of one Attachment.", scope="operator", minimum=1)
    max_turn_attachment_bytes: int = _setting(
        1000 * MEGABYTE, "Bytes of all Attachments of a Turn.", scope="operator", minimum=1
    )
    max_workspace_bytes: int = _setting(200 * MEGABYTE, "Bytes of a Workspace.", scope="operator", minimum=1)
    max_workspace_files: int = _setting(5000, "Files and directories of a Workspace.", scope="operator", minimum=1)
    max_file_bytes: int = _setting(100 * MEGABYTE, "Bytes of one Workspace file.", scope="operator", minimum=1)


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """What one owner may use at once."""

    max_running: int = _setting(8, "Running Turns of an owner.", scope="operator", minimum=1)
    max_queued: int = _setting(100, "Queued Turns of an owner.", scope="operator", minimum=1)


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How long events are kept."""

    retention_days: int = _setting(90, "Days the events of an ended Turn are kept.", scope="operator", minimum=1)


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How long Turns are kept."""

    retention_days: int = _setting(0, "Days an ended Turn is kept; 0 is for ever.", scope="operator", minimum=0)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The web process."""

    host: str = _setting("0.0.0.0", "Address to listen on.", scope="operator")  # a dyno must
    max_streams: int = _setting(600, "Open event streams per process.", scope="operator", minimum=1)
    max_owner_streams: int = _setting(100, "Open event streams per owner and process.", scope="operator", minimum=1)
    threads: int = _setting(16, "Threads for requests other than streams.", scope="operator", minimum=2, maximum=200)
    requests_per_s: int = _setting(
        0, "Requests per second and token in one process; 0 is no limit.", scope="operator", minimum=0
    )
    local_only: bool = _setting(False, "Refuse foreign Host headers and cross-site requests.", scope="operator")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings in force, by section."""

    rlm: RlmSettings = field(default_factory=RlmSettings)
    run: RunSettings = field(default_factory=RunSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    files: FileSettings = field(default_factory=FileSettings)
    owner: OwnerSettings = field(default_factory=OwnerSettings)
    events: EventSettings = field(default_factory=EventSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    web: WebSettings = field(default_factory=WebSettings)

    def value(self, key: str) -> Any:
        """The value of `section.name`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def with_values(self, values: dict[str, Any]) -> "Settings":
        """These settings with some keys (`section.name`) set to values that were already checked."""
        changed: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            changed.setdefault(section, {})[name] = value
        sections = {name: dataclasses.replace(getattr(self, name), **fields) for name, fields in changed.items()}
        return dataclasses.replace(self, **sections)


SECTIONS: Final = tuple(item.name for item in dataclasses.fields(Settings))


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is declared. `type` is bool, int, float or str."""

    key: str
    type: Literal["bool", "int", "float", "str"]
    scope: Scope
    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable, `FLEET_<SECTION>_<KEY>`."""
        return "FLEET_" + self.key.replace(".", "_").upper()

    def parse(self, text: str) -> Any:
        """The value of a text from the environment. Raises ValueError with what is wrong."""
        match self.type:
            case "bool":
                known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False}
                known["off"] = False
                if text.strip().lower() not in known:
                    raise ValueError("must be true or false")
                return known[text.strip().lower()]
            case "int" | "float":
                try:
                    number = int(text) if self.type == "int" else float(text)
                except ValueError:
                    raise ValueError("must be a whole number" if self.type == "int" else "must be a number") from None
                return self.check(number)
            case "str":
                return self.check(text.strip())

    def check(self, value: Any) -> Any:
        """`value` when its type and bounds are right. Raises ValueError with what is wrong."""
        types: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}
        if type(value) not in types[self.type]:
            raise ValueError(f"must be of type {self.type}")
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        if self.type in ("int", "float"):
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError("must be finite")
            if self.minimum is not None and value < self.minimum:
                raise ValueError(f"must be at least {self.minimum:g}")
            if self.maximum is not None and value > self.maximum:
                raise ValueError(f"must be at most {self.maximum:g}")
        return value


def options() -> dict[str, Option]:
    """Every declared setting by key, in order of declaration."""
    declared: dict[str, Option] = {}
    for section in dataclasses.fields(Settings):
        for item in dataclasses.fields(cast(Any, section.type)):
            key = f"{section.name}.{item.name}"
            declared[key] = Option(
                key=key,
                type=cast(Any, item.type).__name__,
                scope=item.metadata["scope"],
                default=item.default,
                minimum=item.metadata["minimum"],
                maximum=item.metadata["maximum"],
                choices=item.metadata["choices"],
                help=item.metadata["help"],
            )
    return declared
