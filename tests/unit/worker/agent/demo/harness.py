"""Runs the demo model on real files: its rules get the prompt DSPy would send, and its cells are executed."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from fleet_worker.agent.demo.plans import action, summary
from fleet_worker.agent.demo.reading import read


class Submitted(BaseException):
    """SUBMIT was called."""


class Conversation:
    """A Session with files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.published: list[str] = []

    def attach(self, name: str, content: str | bytes) -> None:
        """Add a file."""
        data = content.encode() if isinstance(content, str) else content
        path = self.folder / name
        path.write_bytes(data)
        is_text = b"\0" not in data[:4096]
        self.files.append(
            {
                "path": str(path),
                "name": name,
                "bytes": len(data),
                "media_type": "text/plain",
                "lines": data.count(b"\n") if is_text else None,
                "sha256": "0" * 64,
                "source": "attachment",
                "preview": data[:60].decode("utf-8", "replace") if is_text else "",
            }
        )

    def ask(self, question: str, *, iterations: int = 6) -> str:
        """The answer to a question; its cells really run."""
        outputs: list[tuple[str, str]] = []
        namespace: dict[str, Any] = {}
        submitted: list[str] = []

        def submit(answer: str) -> None:
            submitted.append(answer)
            raise Submitted

        recent = "\n\n".join(f"Q: {item['question']}\nA: {item['answer']}" for item in self.history[-2:])
        for iteration in range(1, iterations + 1):
            reading = read(self._prompt(question, recent, outputs, iteration))
            assert reading is not None
            code = action(reading).code
            namespace.update(
                question=question,
                files=[dict(item) for item in self.files],
                history=[dict(item) for item in self.history],
                notes=[],
                SUBMIT=submit,
                publish=self._publish,
                llm_query=summary,
                llm_query_batched=lambda prompts: [summary(prompt) for prompt in prompts],
            )
            printed = io.StringIO()
            try:
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, "<cell>", "exec"), namespace)
                outputs.append((code, printed.getvalue()))
            except Submitted:
                self.history.append({"turn": len(self.history) + 1, "question": question, "answer": submitted[0]})
                return submitted[0]
            except Exception as error:  # noqa: BLE001  # as the loop shows it to the model
                outputs.append((code, f"{printed.getvalue()}[Error] {type(error).__name__}: {error}"))
        raise AssertionError(f"no answer to {question!r}: {outputs}")

    def _publish(self, path: str, title: str = "") -> str:
        assert Path(path).exists()
        self.published.append(path)
        return f"published {path}"

    def _prompt(self, question: str, recent: str, outputs: list[tuple[str, str]], iteration: int) -> str:
        def variable(name: str, value: Any) -> str:
            text = value if isinstance(value, str) else json.dumps(value, indent=2)
            indented = "\n".join("    " + line for line in f"```\n{text}\n```".split("\n"))
            return (
                f"[1] «««\n    Variable: `{name}` (access it in your code)\n    Type: x\n    Preview:\n{indented}\n»»»"
            )

        variables = "\n".join(
            [variable("question", question), variable("recent", recent or "(none)"), variable("files", self.files)]
        )
        steps = "\n".join(
            f"=== Step {i} ===\nReasoning: r\nCode:\n```python\n{code}\n```\nOutput ({len(text)} chars):\n{text}"
            for i, (code, text) in enumerate(outputs, 1)
        )
        return (
            f"[[ ## variables_info ## ]]\n{variables}\n\n[[ ## repl_history ## ]]\n{steps or 'nothing yet'}\n\n"
            f"[[ ## iteration ## ]]\n{iteration}/20\n\nRespond with `[[ ## reasoning ## ]]` and `[[ ## code ## ]]`"
        )


def values(answer: str) -> list[str]:
    """The bold parts of an answer, without thousands separators."""
    return [re.sub(r"(?<=\d),(?=\d{3})", "", item) for item in re.findall(r"\*\*(.+?)\*\*", answer)]
