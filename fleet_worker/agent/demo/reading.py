"""What the demo model reads in a prompt: the question, the files, the iteration, and what its earlier cells printed."""

import json
import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Final

_SECTION: Final = re.compile(r"^\[\[ ## (\w+) ## \]\]\n", re.MULTILINE)
_ITERATION: Final = re.compile(r"^\[\[ ## iteration ## \]\]\s*(\d+)/(\d+)", re.MULTILINE)
_VARIABLE: Final = re.compile(r"Variable: `(\w+)`.*?^ *```\n(.*?)\n *```\n»»»", re.DOTALL | re.MULTILINE)
_OUTPUT: Final = re.compile(r"^Output \([\d,]+ chars\):\n(.*?)(?=^=== Step \d+ ===|\Z)", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(
    r'"path": ("(?:[^"\\]|\\.)*"),\s*"name": ("(?:[^"\\]|\\.)*"),\s*"bytes": (\d+),\s*"media_type": "([^"]*)",'
    r'\s*"lines": (\d+|null),\s*"sha256": "[^"]*",\s*"source": "(\w+)"'
)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the manifest."""

    path: str
    name: str
    bytes: int
    media_type: str
    is_text: bool
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A root call. `iteration` is None in the call that extracts a last answer, `wanted` then names its fields."""

    question: str
    recent: str
    files: tuple[File, ...]
    iteration: int | None
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]

    @property
    def last_output(self) -> str:
        """What the last cell printed, "" before the first."""
        return self.outputs[-1] if self.outputs else ""

    @property
    def failed(self) -> bool:
        """Whether the last cell ended with an error."""
        return "[Error]" in self.last_output

    def found(self, mark: str) -> Any:
        """The JSON that a cell printed after `mark`, None when it did not."""
        for output in reversed(self.outputs):
            for line in output.splitlines():
                if line.startswith(mark):
                    try:
                        return json.loads(line[len(mark) :])
                    except ValueError:
                        return None
        return None


def read(prompt: str) -> Reading | None:
    """The reading of a root call; None for a sub-call."""
    if "[[ ## variables_info ## ]]" not in prompt or "[[ ## repl_history ## ]]" not in prompt:
        return None
    sections = _sections(prompt)
    variables = {name: dedent(text) for name, text in _VARIABLE.findall(sections.get("variables_info", "") + "\n")}
    iteration = _ITERATION.search(prompt)
    tail = prompt[prompt.rfind("Respond with") :]
    wanted = tuple(name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", tail) if name != "completed")
    outputs = tuple(text.strip("\n") for text in _OUTPUT.findall(sections.get("repl_history", "")))
    return Reading(
        question=variables.get("question", "").strip(),
        recent=variables.get("recent", ""),
        files=_files(variables.get("files", "")),
        iteration=int(iteration.group(1)) if iteration else None,
        outputs=outputs,
        wanted=wanted,
    )


def _files(preview: str) -> tuple[File, ...]:
    """The files whose entries the preview shows whole; of a long list the preview shows the first and the last ones."""
    return tuple(
        File(json.loads(path), json.loads(name), int(size), media_type, lines != "null", source)
        for path, name, size, media_type, lines, source in _FILE.findall(preview)
    )


def _sections(prompt: str) -> dict[str, str]:
    parts = _SECTION.split(prompt)
    return {parts[i]: parts[i + 1] for i in range(1, len(parts) - 1, 2)}
