"""The scripted model server: what a client sees of answers and of every fault, and what the log tells of it."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from tests.fakes.daytona import until
from tests.fakes.model_script import Fault, Kind, rate_limited, refused, steps, too_long
from tests.fakes.model_server import ModelServer, model_server
from tests.fakes.stack import ROOT

ROOT_PROMPT = "[[ ## repl_history ## ]]\nnothing\n\n[[ ## iteration ## ]]\n{}/5\n\nRespond with [[ ## reasoning ## ]]"
EXTRACTION = "[[ ## repl_history ## ]]\nx\n\nRespond with `[[ ## answer ## ]]` and then `[[ ## completed ## ]]`."


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(steps("print(1)", "SUBMIT(2)")) as started:
        yield started


def post(
    server: ModelServer, text: str = ROOT_PROMPT.format(1), *, stream: bool = False, timeout_s: float = 10
) -> requests.Response:
    body = {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": text}]}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return requests.post(f"{server.url}/chat/completions", json={**body, **options}, timeout=timeout_s)


def content(answer: requests.Response) -> str:
    text = answer.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def test_a_script_answers_by_iteration_extraction_and_sub_call(server: ModelServer) -> None:
    assert "print(1)" in content(post(server, ROOT_PROMPT.format(1)))
    assert "SUBMIT(2)" in content(post(server, ROOT_PROMPT.format(4)))
    assert content(post(server, EXTRACTION)).startswith("[[ ## answer ## ]]\nextracted")
    assert content(post(server, "say hello")) == "sub: say hello"
    assert [served.asked.role for served in server.requests] == ["root", "root", "extract", "sub"]
    assert (server.requests[1].asked.iteration, server.requests[1].asked.iterations) == (4, 5)


def test_a_stream_has_the_text_in_pieces_the_usage_and_an_end(server: ModelServer) -> None:
    answer = post(server, stream=True)
    messages = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert messages[-1] == "[DONE]"
    chunks = [json.loads(message) for message in messages[:-1]]
    pieces = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert len(pieces) > 5 and "".join(pieces) == content(post(server))
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop" and chunks[-1]["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (refused(401), 401, "invalid_api_key"),
        (refused(403), 403, "permission_denied"),
        (rate_limited("7"), 429, "rate_limit_exceeded"),
        (too_long(), 400, "context_length_exceeded"),
        (Fault("status", status=503), 503, "server_error"),
    ],
)
def test_a_status_fault_answers_as_the_provider_does(server: ModelServer, fault: Fault, status: int, code: str) -> None:
    server.fail(fault)
    answer = post(server)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("Retry-After") == ("7" if status == 429 else None)
    assert post(server).status_code == 200


def test_a_fault_happens_as_often_as_asked_and_to_its_role_alone(server: ModelServer) -> None:
    server.fail(Fault("status", times=2, role="sub"))
    statuses = [post(server, text).status_code for text in ("a", ROOT_PROMPT.format(1), "b", "c")]
    assert statuses == [500, 200, 500, 200]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["reset", "cut"])
def test_a_broken_connection_reaches_the_client_at_once(server: ModelServer, kind: Kind, stream: bool) -> None:
    server.fail(Fault(kind))
    began = time.monotonic()
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        post(server, stream=stream)
    assert time.monotonic() - began < 5
    assert post(server).status_code == 200 and server.disconnects == 0


def test_a_hanging_request_sends_no_header_and_the_log_tells_who_hung_up(server: ModelServer) -> None:
    server.fail(Fault("hang"))
    with pytest.raises(requests.ReadTimeout):
        post(server, timeout_s=0.3)
    until(lambda: server.disconnects == 1, seconds=5, what="the server saw the client go")
    served = server.requests[0]
    assert served.hung_up and served.fault == "hang" and 0.2 < served.ended - served.began < 5


def test_a_trickling_answer_is_slow_but_whole(server: ModelServer) -> None:
    server.fail(Fault("trickle", seconds=0.02))
    began = time.monotonic()
    answer = post(server, stream=True)
    assert answer.text.endswith("data: [DONE]\n\n") and time.monotonic() - began > 0.1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("empty", ""), ("prose", "Next step."), ("fence", "```python\nprint(1)\n```")],
)
def test_a_text_fault_spoils_the_format_alone(server: ModelServer, kind: Kind, expected: str) -> None:
    server.fail(Fault(kind))
    assert content(post(server)) == expected


def test_an_answer_may_come_as_json_or_cut_by_length(server: ModelServer) -> None:
    server.fail(Fault("json"), Fault("length"))
    assert json.loads(content(post(server))) == {"reasoning": "Next step.", "code": "```python\nprint(1)\n```"}
    short = post(server)
    assert short.json()["choices"][0]["finish_reason"] == "length" and "completed" not in content(short)


def test_the_log_measures_the_union_of_what_ran_at_once(server: ModelServer) -> None:
    server.delay_s = 0.3
    post(server, "an earlier one")
    began = time.monotonic()
    threads = [threading.Thread(target=post, args=(server, "x")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - began
    assert server.max_in_flight >= 2
    assert 0.3 <= server.busy_s(since=began) <= wall < 1.2
    assert server.busy_s() >= server.busy_s(since=began) + 0.3
    assert server.busy_s(since=time.monotonic()) == 0.0


def test_a_stopped_server_leaves_no_connection_open() -> None:
    with model_server(steps("x")) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=5) as idle:
            idle.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(4) == b"HTTP"
            server.stop()
            while idle.recv(65536):
                pass


def test_it_runs_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "tests.fakes.model_server", "--code", "SUBMIT(7)"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            origin = url.removesuffix("/v1")
            fault = {"kind": "status", "status": 418}
            requests.post(f"{origin}/scripted/faults", json=fault, timeout=10).raise_for_status()
            body = {"model": "m", "messages": [{"role": "user", "content": ROOT_PROMPT.format(1)}]}
            answers = [requests.post(f"{url}/chat/completions", json=body, timeout=10) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [418, 200] and "SUBMIT(7)" in answers[1].text
            log = requests.get(f"{origin}/scripted/requests", timeout=10).json()["requests"]
            assert [served["status"] for served in log] == [418, 200]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
