"""One real Turn, end to end, over HTTP: accepted, streamed, resumed, kept."""

import io
import json
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from fleet_term.client import ApiError
from tests.fakes.redis import RedisServer
from tests.fakes.stack import Stack, attach

GPL = Path("/usr/share/common-licenses/GPL-3")
PATENT = 'How many times does the word "patent" appear in the attached file?'


def facts(stack: Stack, turn_id: str) -> list[dict[str, Any]]:
    """The stored facts of a Turn."""
    page = requests.get(
        f"{stack.url}/api/turns/{turn_id}/events",
        headers={"Authorization": f"Bearer {stack.token}", "Accept": "application/json"},
        timeout=10,
    ).json()
    assert page["complete"]
    return list(page["items"])


def test_the_question_about_the_license_is_answered_with_the_right_number(stack: Stack) -> None:
    turn = stack.ask(PATENT, files={"GPL-3": GPL.read_bytes()})
    assert turn["status"] == "completed"
    assert "**23**" in turn["answer"] and "whole word, any case" in turn["answer"]
    assert turn["usage"]["iterations"] == 2 and turn["error"] is None
    log = facts(stack, turn["id"])
    assert [item["seq"] for item in log] == list(range(1, turn["last_event_seq"] + 1))
    types = [item["type"] for item in log]
    assert types[:2] == ["turn.queued", "turn.started"] and types[-3:] == ["usage", "answer", "turn.completed"]
    assert types.index("reasoning") < types.index("code") < types.index("output") < types.index("cell.finished")
    assert any(item["type"] == "notice" and item["code"] == "demo_model" for item in log)


def test_a_hidden_number_is_found_in_eight_megabytes(stack: Stack) -> None:
    text = b"nothing to see in this line of text\n" * 120_000 + b"The secret number is 90817263.\n"
    text += b"nothing to see in this line of text\n" * 110_000
    assert len(text) > 8_000_000
    turn = stack.ask("Find the secret number hidden in this file.", files={"long.txt": text})
    assert "**90817263**" in turn["answer"]


def test_a_session_remembers_its_files_and_answers(stack: Stack) -> None:
    first = stack.ask(PATENT, files={"GPL-3": GPL.read_bytes()})
    session = first["session_id"]
    second = stack.ask("How many lines does the same file have?", session_id=session)
    assert "**674**" in second["answer"] and second["sequence"] == 2
    third = stack.ask("What did I ask first?", session_id=session)
    assert "patent" in third["answer"]


def test_a_report_becomes_an_artifact_and_a_workspace_file(stack: Stack) -> None:
    turn = stack.ask("Write a report about this file", files={"notes.txt": b"alpha beta\ngamma delta\n" * 50})
    assert [item["path"] for item in turn["artifacts"]] == ["reports/report.md"]
    assert [(item["path"], item["change"]) for item in turn["files_changed"]] == [("reports/report.md", "added")]
    artifact = turn["artifacts"][0]
    headers = {"Authorization": f"Bearer {stack.token}"}
    content = requests.get(f"{stack.url}/api/artifacts/{artifact['id']}/content", headers=headers, timeout=10)
    assert content.text.startswith("# Report") and content.headers["ETag"] == f'"{artifact["sha256"]}"'
    assert content.headers["X-Content-Type-Options"] == "nosniff"
    part = requests.get(
        f"{stack.url}/api/artifacts/{artifact['id']}/content", headers={**headers, "Range": "bytes=2-7"}, timeout=10
    )
    assert (part.status_code, part.text) == (206, "Report")
    files = stack.client.get(f"/api/sessions/{turn['session_id']}/files", recursive="true")["items"]
    assert {item["path"] for item in files} == {"reports", "reports/report.md"}
    again = stack.ask("list files", session_id=turn["session_id"])
    assert "report.md" in again["answer"]


def test_a_stream_that_breaks_goes_on_without_gap_or_repeat(stack: Stack) -> None:
    client = stack.client
    session = client.create_session()["id"]
    turn = client.submit(session, PATENT, attachment_ids=[attach(client, "GPL-3", GPL.read_bytes())])
    seen: list[int] = []
    ended = False
    while not ended:
        stream = client.follow(turn["id"], after=seen[-1] if seen else 0)
        for event in stream:
            if event.seq is not None:
                seen.append(event.seq)
                ended = event.is_terminal
                if event.seq % 3 == 0:
                    break  # hang up in the middle
        stream.stop()
    assert seen == list(range(1, client.turn(turn["id"])["last_event_seq"] + 1))
    end = requests.get(
        f"{stack.url}/api/turns/{turn['id']}/events",
        headers={"Authorization": f"Bearer {stack.token}", "Last-Event-ID": str(seen[-1])},
        timeout=10,
    )
    assert end.status_code == 204


def test_curl_alone_is_enough(stack: Stack) -> None:
    def curl(*words: str) -> str:
        command = ["curl", "-sS", "-m", "30", "-H", f"Authorization: Bearer {stack.token}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    session = json.loads(curl("-H", "Content-Type: application/json", "-d", "{}", f"{stack.url}/api/sessions"))
    attachment = json.loads(curl("-F", f"file=@{GPL}", f"{stack.url}/api/attachments"))
    body = json.dumps({"prompt": PATENT, "attachment_ids": [attachment["id"]]})
    head = ["-H", "Content-Type: application/json", "-H", "Idempotency-Key: k1", "-w", "\n%{http_code}"]
    answer, status = curl(*head, "-d", body, f"{stack.url}/api/sessions/{session['id']}/turns").rsplit("\n", 1)
    turn = json.loads(answer)
    assert status == "202"
    stream = curl("-N", f"{stack.url}/api/turns/{turn['id']}/events")
    ids = [int(number) for number in re.findall(r"^id: (\d+)$", stream, re.MULTILINE)]
    assert ids == list(range(1, ids[-1] + 1)) and "event: turn.completed" in stream
    middle = curl("-N", "-H", "Last-Event-ID: 5", f"{stack.url}/api/turns/{turn['id']}/events")
    assert [int(number) for number in re.findall(r"^id: (\d+)$", middle, re.MULTILINE)] == ids[5:]
    repeated, status = curl(*head, "-d", body, f"{stack.url}/api/sessions/{session['id']}/turns").rsplit("\n", 1)
    assert (json.loads(repeated)["id"], status) == (turn["id"], "200")


def test_a_second_turn_of_a_session_is_refused_while_one_is_open(stack: Stack) -> None:
    stack.signal("worker", signal.SIGSTOP)
    try:
        client = stack.client
        session = client.create_session()["id"]
        turn = client.submit(session, "What is 2 + 2?")
        with pytest.raises(ApiError) as busy:
            client.submit(session, "What is 3 + 3?")
        assert (busy.value.status, busy.value.code) == (409, "session_busy")
        assert busy.value.problem["turn_id"] == turn["id"]
        cancelled = client.cancel(turn["id"])
        assert cancelled["status"] in ("cancelled", "running")
    finally:
        stack.signal("worker", signal.SIGCONT)


def test_a_cancel_ends_a_sleeping_cell_and_leaves_the_session_usable(stack: Stack) -> None:
    client = stack.client
    session = client.create_session()["id"]
    # The demo model computes a sum by listing every number: long enough to be cancelled in the middle.
    turn = client.submit(session, "sum of the primes between 1 and 4999999")
    ended: list[float] = []
    running = threading.Event()

    def follow() -> None:
        for event in client.copy().follow(turn["id"]):
            if event.type == "code":
                running.set()
        ended.append(time.monotonic())

    reader = threading.Thread(target=follow)
    reader.start()
    assert running.wait(20)
    time.sleep(0.3)
    began = time.monotonic()
    client.cancel(turn["id"])
    reader.join(10)
    assert ended and ended[0] - began < 2.5
    assert client.turn(turn["id"])["status"] == "cancelled"
    assert "**4**" in stack.ask("What is 2 + 2?", session_id=session)["answer"]


def test_everything_is_there_after_redis_was_emptied_and_all_was_killed(stack: Stack, redis: RedisServer) -> None:
    turn = stack.ask(PATENT, files={"GPL-3": GPL.read_bytes()})
    before = facts(stack, turn["id"])
    redis.stop()
    stack.kill("web")
    stack.kill("worker")
    redis.start()
    stack.start_web()
    stack.start_worker()
    stack.wait_ready()
    assert facts(stack, turn["id"]) == before
    again = stack.ask("How many lines does the same file have?", session_id=turn["session_id"])
    assert "**674**" in again["answer"]


def test_a_turn_accepted_while_redis_is_away_runs_when_it_is_back(stack: Stack, redis: RedisServer) -> None:
    session = stack.client.create_session()["id"]
    redis.stop()
    try:
        began = time.monotonic()
        turn = stack.client.submit(session, "What is 2 + 2?")
        assert time.monotonic() - began < 1.0
        assert turn["status"] == "queued"
    finally:
        redis.start()
    deadline = time.monotonic() + 60
    while stack.client.turn(turn["id"])["status"] != "completed" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "**4**" in stack.client.turn(turn["id"])["answer"]


def test_foreign_things_look_like_missing_ones(stack: Stack) -> None:
    turn = stack.ask("What is 2 + 2?")
    other = stack.command("fleet_web", "token", "create", f"other-{time.time_ns()}")
    headers = {"Authorization": f"Bearer {other}"}
    for path in (f"/api/turns/{turn['id']}", f"/api/sessions/{turn['session_id']}", f"/api/turns/{turn['id']}/events"):
        answer = requests.get(stack.url + path, headers=headers, timeout=10)
        assert answer.status_code == 404 and answer.json()["code"].endswith("_not_found")
    assert requests.get(f"{stack.url}/api/turns/{turn['id']}", timeout=10).status_code == 401


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"prompt": "x", "extra": 1}', 422, "invalid_request"),
        (b'{"prompt": "   "}', 422, "invalid_request"),
        (b'{"prompt": "x\\u0000"}', 422, "invalid_request"),
        (b'{"prompt": "x", "attachment_ids": ["00000000-0000-0000-0000-000000000000"]}', 422, "invalid_request"),
        (b'{"prompt": "x", "options": {"max_iterations": 1000}}', 422, "invalid_request"),
        (b'{"prompt": ', 400, "malformed"),
        (b"[" * 100_000, 400, "malformed"),
        (b"\xff", 400, "malformed"),
        (b"[]", 422, "invalid_request"),
    ],
)
def test_bad_input_is_refused_with_a_clear_code(stack: Stack, body: bytes, status: int, code: str) -> None:
    session = stack.client.create_session()["id"]
    headers = {"Authorization": f"Bearer {stack.token}", "Content-Type": "application/json", "X-Request-ID": "abc"}
    answer = requests.post(f"{stack.url}/api/sessions/{session}/turns", data=body, headers=headers, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"] == "abc"


def test_an_upload_keeps_its_name_and_refuses_what_is_empty(stack: Stack) -> None:
    client = stack.client
    made = client.upload_stream(io.BytesIO(b"x"), "../dir/naïve (1) 你好.csv", 1)
    assert made["name"] == "naïve (1) 你好.csv" and made["media_type"] == "text/csv"
    with pytest.raises(ApiError) as refused:
        client.upload_stream(io.BytesIO(b""), "empty.txt", None)
    assert refused.value.status == 422
