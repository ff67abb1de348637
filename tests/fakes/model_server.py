"""A scripted model server: OpenAI chat completions over HTTP, streamed or not, with faults on demand and a log.

In a test: `with model_server(steps("SUBMIT('x')")) as server`. As a process: `python -m tests.fakes.model_server`; it
prints its address as one line of JSON, GET /scripted/requests is then the log, POST /scripted/faults a Fault's fields.
What is answered is decided in `model_script`.
"""

import argparse
import contextlib
import json
import re
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.model_script import Asked, Fault, Reply, Script, asked_in, spoiled, steps, tokens

_PIECES = re.compile(r"\S+\s*|\s+")


@dataclass(slots=True)
class Served:
    """A request in the log: when it came and was over (`time.monotonic`, 0.0 while it runs), and how it ended."""

    asked: Asked
    began: float
    ended: float = 0.0
    status: int = 0
    fault: str | None = None
    hung_up: bool = False


class ClientGone(ConnectionError):
    """The client hung up before it had the whole answer."""


class ModelServer:
    """A running server. `script`, `delay_s` (before headers) and `pause_s` (between pieces) may change at any time."""

    def __init__(self, script: Script, *, port: int = 0) -> None:
        self.script = script
        self.delay_s = 0.0
        self.pause_s = 0.0
        self.requests: list[Served] = []
        self.max_in_flight = 0
        self._in_flight = 0
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(self, port)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def disconnects(self) -> int:
        """How many requests the client gave up."""
        return sum(served.hung_up for served in self.requests)

    def environment(self, name: str = "openai/scripted") -> dict[str, str]:
        """The variables that make a deployment use this server."""
        return {"FLEET_MODEL": name, "FLEET_MODEL_API_BASE": self.url, "FLEET_MODEL_API_KEY": "key-of-the-tests"}

    def fail(self, *faults: Fault) -> None:
        """Let these faults happen to the next requests, in this order."""
        with self._lock:
            self._faults.extend(fault for fault in faults for _ in range(fault.times))

    def reset(self) -> None:
        """Forget the log and the faults that have not happened yet."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()
            self.max_in_flight = self._in_flight

    def busy_s(self, since: float = 0.0) -> float:
        """Seconds in which at least one request that came after `since` (`time.monotonic`) was served."""
        now = time.monotonic()
        with self._lock:
            spans = sorted((item.began, item.ended or now) for item in self.requests if item.began >= since)
        total, end = 0.0, 0.0
        for began, ended in spans:
            total += max(0.0, ended - max(began, end))
            end = max(end, ended)
        return total

    def wait(self) -> None:
        """Serve until the process is ended."""
        self._thread.join()

    def stop(self) -> None:
        """End, with every open connection."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()

    def answer(self, http: "_Exchange", body: dict[str, Any]) -> None:
        """Serve one chat completion."""
        served = Served(asked_in(body, http.headers.get("Authorization", "")), time.monotonic())
        with self._lock:
            self.requests.append(served)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
            fault = self._next_fault(served.asked)
        served.fault = fault.kind if fault else None
        try:
            http.pause(self.delay_s)
            if fault is None or fault.kind not in ("status", "reset", "hang"):
                self._reply(http, served, fault)
            elif fault.kind == "status":
                served.status = fault.status
                http.send_json(fault.status, _problem(fault), fault.headers)
            else:
                if fault.kind == "hang":
                    http.pause(fault.seconds)
                http.reset()
        except (ClientGone, BrokenPipeError, ConnectionResetError):
            served.hung_up = True
            http.close_connection = True
        finally:
            with self._lock:
                served.ended = time.monotonic()
                self._in_flight -= 1

    def _next_fault(self, asked: Asked) -> Fault | None:
        for place, fault in enumerate(self._faults):
            if fault.role in (None, asked.role):
                return self._faults.pop(place)
        return None

    def _reply(self, http: "_Exchange", served: Served, fault: Fault | None) -> None:
        made = self.script(served.asked)
        reply = made if isinstance(made, Reply) else Reply(made)
        pause_s, cut = self.pause_s, False
        if fault is not None:
            reply = spoiled(reply, fault.kind)
            cut = fault.kind == "cut"
            pause_s = fault.seconds if fault.kind == "trickle" else pause_s
        served.status = 200
        send = http.send_stream if served.asked.streamed else http.send_whole
        send(served.asked, reply, pause_s=pause_s, cut=cut)


class _Server(ThreadingHTTPServer):
    """Knows the open connections, so that none outlives it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: ModelServer, port: int) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Exchange)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no event here; anything else is a fault of a script and must be seen."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        """End every connection."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Exchange(BaseHTTPRequestHandler):
    """One connection: reads requests, writes answers, notices a client that is gone."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/scripted/requests":
            self.send_json(200, {"requests": [asdict(served) for served in self.server.owner.requests]})
        else:
            self.send_json(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/scripted/faults":
            self.server.owner.fail(Fault(**body))
            self.send_json(200, {})
        elif self.path == "/v1/chat/completions":
            self.server.owner.answer(self, body)
        else:
            self.send_json(404, {"error": {"message": f"no {self.path}", "type": "invalid_request_error"}})

    def log_message(self, *_: Any) -> None:
        """The log is the server's list of requests."""

    def pause(self, seconds: float) -> None:
        """Wait. Raises ClientGone as soon as the client hangs up."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.connection], [], [], left)[0]:
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ClientGone
                time.sleep(min(left, 0.01))  # the next request is there already

    def reset(self) -> None:
        """Close so that the client reads a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        # The socket lives as long as a file over it does.
        self.rfile.close()
        self.connection.close()

    def send_json(self, status: int, value: object, headers: Any = None, *, cut: bool = False) -> None:
        """A whole answer; a cut one promises its length and sends the half."""
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def send_whole(self, asked: Asked, reply: Reply, *, pause_s: float, cut: bool) -> None:
        """The answer as one message, after the time its pieces would take."""
        self.pause(pause_s * len(_PIECES.findall(reply.text)))
        message = {"role": "assistant", "content": reply.text}
        choice = {"index": 0, "message": message, "finish_reason": reply.finish}
        value = {**_head(asked, "chat.completion"), "choices": [choice], "usage": _usage(asked, reply)}
        self.send_json(200, value, cut=cut)

    def send_stream(self, asked: Asked, reply: Reply, *, pause_s: float, cut: bool) -> None:
        """The answer word by word as server-sent events; a cut one ends after half of them."""
        head = _head(asked, "chat.completion.chunk")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event({**head, "choices": [_delta({"role": "assistant", "content": ""})]})
        pieces = _PIECES.findall(reply.text)
        for piece in pieces[: len(pieces) // 2] if cut else pieces:
            self.pause(pause_s)
            self._event({**head, "choices": [_delta({"content": piece})]})
        if cut:
            self.close_connection = True
            return
        self._event({**head, "choices": [_delta({}, reply.finish)]})
        if asked.wants_usage:
            self._event({**head, "choices": [], "usage": _usage(asked, reply)})
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextlib.contextmanager
def model_server(script: Script) -> Iterator[ModelServer]:
    """A running server for the length of a block."""
    server = ModelServer(script)
    try:
        yield server
    finally:
        server.stop()


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": asked.model}


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _usage(asked: Asked, reply: Reply) -> dict[str, int]:
    answered = tokens(reply.text)
    total = asked.prompt_tokens + answered
    return {"prompt_tokens": asked.prompt_tokens, "completion_tokens": answered, "total_tokens": total}


def _problem(fault: Fault) -> dict[str, Any]:
    kind = "invalid_request_error" if fault.status < 500 else "server_error"
    return {"error": {"message": fault.message, "type": kind, "param": None, "code": fault.code}}


def main() -> None:
    """Serve until ended; every iteration runs the next `--code`."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.model_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--code", action="append", help="the Python of an iteration; may be repeated")
    parser.add_argument("--delay-s", type=float, default=0.0, help="seconds before the headers of an answer")
    parser.add_argument("--pause-s", type=float, default=0.0, help="seconds between two pieces of an answer")
    chosen = parser.parse_args()
    server = ModelServer(steps(*(chosen.code or ["SUBMIT('ok')"])), port=chosen.port)
    server.delay_s, server.pause_s = chosen.delay_s, chosen.pause_s
    sys.stdout.write(json.dumps({"url": server.url}) + "\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
    server.stop()


if __name__ == "__main__":
    main()
