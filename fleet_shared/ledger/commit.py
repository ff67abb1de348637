"""What a Turn leaves behind when it is answered: one value, written in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet_shared.domain.errors import FleetError
from fleet_shared.domain.events import Answer, ArtifactPublished, Fact, FileChanged, UsageReported
from fleet_shared.domain.files import Artifact, FileChange
from fleet_shared.domain.turn import ForcedReason, TurnError, Usage
from fleet_shared.store.workspace import StoredFile

#: Changed files told as facts; the others stand in the Turn.
FILES_TOLD = 200
#: Characters of an answer told as facts, and of a result.
ANSWER_LIMIT = 1024 * 1024
RESULT_BYTES = 32 * 1024


class NotHeld(FleetError):
    """The attempt no longer holds its Turn, or a cancel won: nothing was written."""


@dataclass(frozen=True, slots=True)
class CommitArtifact:
    """An Artifact whose bytes are stored already."""

    artifact: Artifact
    blob_id: str


@dataclass(frozen=True, slots=True)
class Commit:
    """An answered Turn. `written` and `removed` make the next Workspace revision; both empty keep the present one."""

    answer: str
    usage: Usage
    result: dict[str, Any] | None = None
    forced: ForcedReason | None = None
    artifacts: Sequence[CommitArtifact] = ()
    written: Sequence[StoredFile] = ()
    removed: Sequence[str] = ()
    files_changed: Sequence[FileChange] = ()

    @property
    def changes_workspace(self) -> bool:
        """Whether there is a new Workspace revision."""
        return bool(self.written or self.removed)


def commit_facts(commit: Commit, *, forced_detail: dict[str, str] | None, result_bytes: int) -> list[Fact]:
    """The facts of an answered Turn before its terminal one, in the order of the contract."""
    facts: list[Fact] = [artifact_fact(item.artifact) for item in commit.artifacts]
    facts += [FileChanged(item.path, item.change.value, item.bytes) for item in commit.files_changed[:FILES_TOLD]]
    facts.append(usage_fact(commit.usage))
    large = result_bytes > RESULT_BYTES
    facts.append(
        Answer(
            text=commit.answer[:ANSWER_LIMIT],
            result=None if large else commit.result,
            result_in_turn=True if large else None,
            forced=forced_detail,
        )
    )
    return facts


def artifact_fact(artifact: Artifact) -> ArtifactPublished:
    """The fact that tells of an Artifact."""
    return ArtifactPublished(
        id=artifact.id,
        session_id=artifact.session_id,
        path=artifact.path,
        title=artifact.title,
        name=artifact.name,
        media_type=artifact.media_type,
        bytes=artifact.bytes,
        sha256=artifact.sha256,
        created_at=artifact.created_at.isoformat().replace("+00:00", "Z"),
    )


def usage_fact(usage: Usage) -> UsageReported:
    """The fact that tells what a Turn used."""
    return UsageReported(
        iterations=usage.iterations,
        lm_calls=usage.lm_calls,
        sub_lm_calls=usage.sub_lm_calls,
        replayed_calls=usage.replayed_calls,
        children=usage.children,
        tool_calls=usage.tool_calls,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
        estimated=usage.estimated,
        duration_ms=usage.duration_ms,
        queue_ms=usage.queue_ms,
        sandbox_ms=usage.sandbox_ms,
        by_model={
            name: {
                "calls": counts.calls,
                "input_tokens": counts.input_tokens,
                "output_tokens": counts.output_tokens,
                "cost_usd": counts.cost_usd,
            }
            for name, counts in usage.by_model.items()
        },
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a Turn ends without an answer, and what it had used."""

    error: TurnError
    usage: Usage | None = None
