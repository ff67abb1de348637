"""A scripted model server: OpenAI chat completions over HTTP, streamed or not, with faults on demand.

A script decides by the request alone, so that requests at the same time do not disturb each other. Faults are taken
from a queue, one per request.
"""

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ITERATION = re.compile(r"^\[\[ ## iteration ## \]\]\s*(\d+)/(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """A request: the last message, the model's name, the loop's iteration (None for a sub-call or an extraction)."""

    text: str
    model: str
    iteration: int | None
    is_extraction: bool
    authorization: str
    began: float


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request: an HTTP status, or reset, cut, hang, trickle, empty."""

    kind: str
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    code: str = ""


@dataclass
class Served:
    """A request that was answered, with when."""

    asked: Asked
    ended: float = 0.0


Script = Callable[[Asked], str]


def action(code: str, reasoning: str = "Next step.") -> str:
    """A root answer in the loop's format."""
    return f"[[ ## reasoning ## ]]\n{reasoning}\n\n[[ ## code ## ]]\n```python\n{code}\n```\n\n[[ ## completed ## ]]"


def steps(
    *codes: str, sub: Callable[[str], str] = lambda prompt: f"sub: {prompt[:40]}", extract: str = "extracted"
) -> Script:
    """A script of one code per iteration; the last one is repeated."""

    def script(asked: Asked) -> str:
        if asked.is_extraction:
            return f"[[ ## answer ## ]]\n{extract}\n\n[[ ## completed ## ]]"
        if asked.iteration is None:
            return sub(asked.text)
        return action(codes[min(asked.iteration, len(codes)) - 1])

    return script


class ModelServer:
    """A running server. `script` may be replaced at any time; `requests` is what was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.delay_s = 0.0
        self.requests: list[Served] = []
        self.faults: deque[Fault] = deque()
        self.disconnects = 0
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner._serve(self, body)

            def log_message(self, *_: Any) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def environment(self, name: str = "openai/scripted") -> dict[str, str]:
        """The variables that make a deployment use this server."""
        return {"FLEET_MODEL": name, "FLEET_MODEL_API_BASE": self.url, "FLEET_MODEL_API_KEY": "key-of-the-tests"}

    def busy_s(self, since: float = 0.0) -> float:
        """Seconds in which at least one request was being served."""
        spans = sorted((item.asked.began, item.ended) for item in self.requests if item.asked.began >= since)
        total, end = 0.0, 0.0
        for began, ended in spans:
            total += max(0.0, ended - max(began, end))
            end = max(end, ended)
        return total

    def stop(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, http: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        text = _text(body["messages"][-1]["content"])
        match = _ITERATION.search(text)
        asked = Asked(
            text=text,
            model=body["model"],
            iteration=int(match.group(1)) if match else None,
            is_extraction=match is None and "[[ ## repl_history ## ]]" in text,
            authorization=http.headers.get("Authorization", ""),
            began=time.time(),
        )
        served = Served(asked)
        with self._lock:
            self.requests.append(served)
            fault = self.faults.popleft() if self.faults else None
        try:
            if fault is not None:
                self._fail(http, fault)
                if fault.kind not in ("trickle", "empty"):
                    return
            time.sleep(self.delay_s)
            answer = "" if fault is not None and fault.kind == "empty" else self.script(asked)
            pause = fault.seconds if fault is not None and fault.kind == "trickle" else 0.0
            self._answer(http, body, answer, pause, cut=False)
        except (BrokenPipeError, ConnectionResetError):
            self.disconnects += 1
        finally:
            served.ended = time.time()

    def _fail(self, http: BaseHTTPRequestHandler, fault: Fault) -> None:
        match fault.kind:
            case "status":
                message = {"error": {"message": f"scripted {fault.status}", "type": "error", "code": fault.code}}
                data = json.dumps(message).encode()
                http.send_response(fault.status)
                for name, value in {**fault.headers, "Content-Type": "application/json"}.items():
                    http.send_header(name, value)
                http.send_header("Content-Length", str(len(data)))
                http.end_headers()
                http.wfile.write(data)
            case "reset":
                http.connection.close()
            case "hang":
                self._until_gone(http, fault.seconds or 60)
            case "cut":
                self._answer(http, {"stream": True, "model": "m"}, "cut in the middle of it", 0.0, cut=True)

    def _until_gone(self, http: BaseHTTPRequestHandler, seconds: float) -> None:
        """Say nothing until the client hangs up."""
        http.connection.settimeout(seconds)
        with contextlib.suppress(OSError):
            if http.connection.recv(1) == b"":
                self.disconnects += 1
        http.close_connection = True

    def _answer(
        self, http: BaseHTTPRequestHandler, body: dict[str, Any], text: str, pause: float, *, cut: bool
    ) -> None:
        usage = {"prompt_tokens": 100, "completion_tokens": len(text) // 4 + 1, "total_tokens": 101 + len(text) // 4}
        shared = {"id": "c", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            data = json.dumps({**shared, "object": "chat.completion", "choices": [message], "usage": usage}).encode()
            http.send_response(200)
            http.send_header("Content-Type", "application/json")
            http.send_header("Content-Length", str(len(data)))
            http.end_headers()
            http.wfile.write(data)
            return
        http.send_response(200)
        http.send_header("Content-Type", "text/event-stream")
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        pieces = re.findall(r"\S+\s*|\s+", text)
        for i, piece in enumerate(pieces):
            time.sleep(pause)
            _chunk(http, {**shared, "object": "chat.completion.chunk", "choices": [_delta({"content": piece})]})
            if cut and i > len(pieces) // 2:
                http.connection.close()
                raise ConnectionResetError
        _chunk(http, {**shared, "object": "chat.completion.chunk", "choices": [_delta({}, "stop")]})
        if (body.get("stream_options") or {}).get("include_usage"):
            _chunk(http, {**shared, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        _chunk(http, "[DONE]")
        http.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def model_server(script: Script) -> Iterator[ModelServer]:
    """A running server for the length of a block."""
    server = ModelServer(script)
    try:
        yield server
    finally:
        server.stop()


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _chunk(http: BaseHTTPRequestHandler, message: Any) -> None:
    text = message if isinstance(message, str) else json.dumps(message)
    data = f"data: {text}\n\n".encode()
    http.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    http.wfile.flush()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])
