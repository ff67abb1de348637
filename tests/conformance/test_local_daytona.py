"""The unmodified SDK against the loopback server: control plane, files, commands, sessions, errors and faults."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from daytona import (
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaAuthenticationError,
    DaytonaBadRequestError,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaFileNotFoundError,
    DaytonaInternalServerError,
    DaytonaNotFoundError,
    DaytonaProcessExecutionTimeoutError,
    DaytonaRateLimitError,
    FileUpload,
    ListSandboxesQuery,
    Sandbox,
    SessionExecuteRequest,
)

from tests.fakes.daytona import LocalDaytona, local_daytona, until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaytona]:
    with local_daytona(tmp_path_factory.mktemp("server"), minute_s=1) as server:
        yield server


@pytest.fixture
def server(running: LocalDaytona, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalDaytona]:
    monkeypatch.chdir(tmp_path)  # the SDK reads .env of the working folder
    running.reset_requests()
    yield running
    running.heal()
    for sandbox in running.status()["sandboxes"]:
        running.happen("destroy", sandbox["id"])


@pytest.fixture
def client(server: LocalDaytona) -> Daytona:
    return Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))


def new(client: Daytona, **more: object) -> Sandbox:
    wanted = {"name": f"t-{uuid.uuid4().hex[:12]}", "auto_stop_interval": 0, **more}
    return client.create(CreateSandboxFromSnapshotParams(**wanted))


@pytest.fixture
def sandbox(client: Daytona) -> Sandbox:
    return new(client)


def test_create_answers_started_in_one_request(server: LocalDaytona, client: Daytona) -> None:
    made = new(client, labels={"app": "x"}, ephemeral=True)
    assert made.state == "started"
    assert made.labels["app"] == "x"
    assert made.auto_delete_interval == 0
    assert server.requests()["by_operation"] == {"create": 1}


def test_a_name_is_unique_until_its_sandbox_is_deleted(client: Daytona) -> None:
    first = new(client, name="unique")
    with pytest.raises(DaytonaConflictError):
        new(client, name="unique")
    assert client.get("unique").id == first.id
    first.delete()
    assert new(client, name="unique").id != first.id


def test_delete_removes_the_row_and_a_second_delete_is_not_found(client: Daytona, sandbox: Sandbox) -> None:
    sandbox.delete()
    with pytest.raises(DaytonaNotFoundError):
        sandbox.delete()
    with pytest.raises(DaytonaNotFoundError):
        client.get(sandbox.id)


def test_list_filters_by_labels_and_pages(client: Daytona) -> None:
    made = {new(client, labels={"run": "1", "n": str(n)}).id for n in range(3)}
    new(client, labels={"run": "2"})
    listed = list(client.list(ListSandboxesQuery(labels={"run": "1"}, limit=2)))
    assert {row.id for row in listed} == made
    assert [row.labels["n"] for row in client.list(ListSandboxesQuery(labels={"n": "2"}))] == ["2"]


def test_labels_intervals_activity_and_network_settings_can_be_changed(client: Daytona, sandbox: Sandbox) -> None:
    sandbox.set_labels({"a": "b"})
    sandbox.set_autostop_interval(7)
    sandbox.set_auto_delete_interval(9)
    sandbox.set_auto_archive_interval(11)
    sandbox.set_ttl(100)
    sandbox.update_network_settings(network_block_all=True)
    before = sandbox.last_activity_at
    sandbox.refresh_activity()
    again = client.get(sandbox.id)
    assert again.labels["a"] == "b"
    assert (again.auto_stop_interval, again.auto_delete_interval, again.auto_archive_interval) == (7, 9, 11)
    assert again.network_block_all is True
    assert again.auto_destroy_at
    assert str(again.last_activity_at) >= str(before)
    assert sandbox.get_preview_link(8080).url.startswith("http://127.0.0.1:")


def test_a_wrong_key_is_refused(server: LocalDaytona) -> None:
    with pytest.raises(DaytonaAuthenticationError):
        list(Daytona(DaytonaConfig(api_key="wrong", api_url=server.url)).list())


def test_stop_and_start_keep_files_and_end_processes(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(b"kept", "kept.txt")
    sandbox.process.exec("nohup sleep 1000 >/dev/null 2>&1 &")
    sandbox.stop()
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.exec("true")
    with pytest.raises(DaytonaBadRequestError):
        sandbox.stop()
    sandbox.start()
    assert sandbox.fs.download_file("kept.txt") == b"kept"
    assert "sleep" not in sandbox.process.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").result


def test_stop_of_an_ephemeral_sandbox_destroys_it(client: Daytona) -> None:
    made = new(client, ephemeral=True)
    made.stop()
    with pytest.raises(DaytonaNotFoundError):
        client.get(made.id)


def test_an_idle_sandbox_stops_and_is_deleted_by_its_intervals(server: LocalDaytona, client: Daytona) -> None:
    kept = new(client, auto_stop_interval=1, auto_delete_interval=2)
    gone = new(client, auto_stop_interval=1, ephemeral=True)
    ended = new(client, ttl_minutes=1)
    until(lambda: _state(client, kept) == "stopped", what="auto-stop")
    until(lambda: _state(client, kept) is None, what="auto-delete")
    until(lambda: _state(client, gone) is None, what="auto-stop of an ephemeral sandbox")
    until(lambda: _state(client, ended) is None, what="end of life")


def _state(client: Daytona, sandbox: Sandbox) -> str | None:
    try:
        return str(client.get(sandbox.id).state.value)
    except DaytonaNotFoundError:
        return None


def test_files_travel_both_ways_unchanged(sandbox: Sandbox) -> None:
    big = bytes(range(256)) * 20_000
    odd = 'odd "näme"\\ 1.txt'
    sandbox.fs.upload_files(
        [FileUpload(big, "/workspace/deep/er/big.bin"), FileUpload(b"", "empty"), FileUpload(b"o", odd)]
    )
    assert sandbox.fs.download_file("/workspace/deep/er/big.bin") == big
    assert sandbox.fs.download_file("empty") == b""
    assert sandbox.fs.download_file(odd) == b"o"
    assert (
        sandbox.process.exec("sha256sum /workspace/deep/er/big.bin | cut -c1-8; id -un; stat -c %U empty").exit_code
        == 0
    )
    with pytest.raises(DaytonaFileNotFoundError):
        sandbox.fs.download_file("nope")


def test_file_operations(sandbox: Sandbox) -> None:
    files = sandbox.fs
    files.create_folder("d/e", "750")
    files.upload_file(b"one\ntwo needle\n", "d/f.txt")
    assert {entry.name: entry.is_dir for entry in files.list_files("d")} == {"e": True, "f.txt": False}
    info = files.get_file_info("d/f.txt")
    assert (info.size, info.mode, info.owner) == (15, "-rw-r--r--", "daytona")
    files.set_file_permissions("d/f.txt", mode="600")
    assert files.get_file_info("d/f.txt").permissions == "0600"
    assert [(hit.line, hit.content) for hit in files.find_files("d", "needle")] == [(2, "two needle")]
    assert [Path(name).name for name in files.search_files("d", "*.txt").files] == ["f.txt"]
    files.replace_in_files(["d/f.txt"], "needle", "pin")
    files.move_files("d/f.txt", "d/e/g.txt")
    assert files.download_file("d/e/g.txt") == b"one\ntwo pin\n"
    with pytest.raises(DaytonaError):
        files.move_files("d/e/g.txt", "d/e")
    with pytest.raises(DaytonaBadRequestError):
        files.delete_file("d")
    files.delete_file("d", recursive=True)
    with pytest.raises(DaytonaNotFoundError):
        files.get_file_info("d")


def test_exec_merges_output_and_honours_cwd_env_and_timeout(sandbox: Sandbox) -> None:
    ran = sandbox.process.exec("echo out; echo err >&2; pwd; echo $X; exit 3", cwd="/tmp", env={"X": "y"})
    assert (ran.exit_code, ran.result) == (3, "out\nerr\n/tmp\ny\n")
    with pytest.raises(DaytonaProcessExecutionTimeoutError):
        sandbox.process.exec("sleep 100", timeout=1)
    assert sandbox.process.exec("pgrep -c sleep || true").result.strip() == "0"
    assert sandbox.process.code_run("import sys; print(6 * 7, sys.version_info >= (3, 9))").result == "42 True\n"
    assert len(sandbox.process.exec("head -c 3000000 /dev/zero | tr '\\0' x").result) == 3_000_000


def test_sandbox_variables_reach_every_process(client: Daytona) -> None:
    made = new(client, env_vars={"GREETING": "hello"})
    assert made.process.exec("echo $GREETING $HOME").result == "hello /home/daytona\n"


def test_a_session_runs_commands_in_order_in_one_shell(sandbox: Sandbox) -> None:
    process = sandbox.process
    process.create_session("s")
    with pytest.raises(DaytonaConflictError):
        process.create_session("s")
    process.execute_session_command("s", SessionExecuteRequest(command="cd /tmp; V=1"))
    ran = process.execute_session_command("s", SessionExecuteRequest(command="pwd; echo $V; echo e >&2; (exit 4)"))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (4, "/tmp\n1\n", "e\n")
    assert [command.exit_code for command in process.get_session("s").commands] == [0, 4]
    process.delete_session("s")
    with pytest.raises(DaytonaNotFoundError):
        process.get_session("s")


async def _followed(sandbox: Sandbox, command: str) -> tuple[str, str]:
    out: list[str] = []
    err: list[str] = []
    await sandbox.process.get_session_command_logs_async("s", command, out.append, err.append)
    return "".join(out), "".join(err)


def test_a_background_command_takes_input_and_is_followed_from_its_first_byte(sandbox: Sandbox) -> None:
    import asyncio

    process = sandbox.process
    process.create_session("s")
    request = SessionExecuteRequest(command="echo first; read x; echo got $x; echo bad >&2", run_async=True)
    request.suppress_input_echo = True
    started = process.execute_session_command("s", request)
    process.send_session_command_input("s", started.cmd_id, "line")
    for _ in range(2):  # following again replays everything
        out, err = asyncio.run(asyncio.wait_for(_followed(sandbox, started.cmd_id), 30))
        assert (out, err) == ("first\ngot line\n", "bad\n")
    assert process.get_session_command("s", started.cmd_id).exit_code == 0
    with pytest.raises(DaytonaError):
        process.send_session_command_input("s", started.cmd_id, "too late")


# Faults: each as the real provider words it.


def test_rate_limits_carry_suffixed_headers_and_are_not_retried_by_the_sdk(
    server: LocalDaytona, client: Daytona
) -> None:
    server.fail("create", "rate_limit", seconds=7)
    with pytest.raises(DaytonaRateLimitError) as caught:
        new(client)
    headers = {name.lower(): value for name, value in dict(caught.value.headers).items()}
    assert headers["retry-after-sandbox-create"] == "7"
    assert "retry-after" not in headers
    assert server.requests()["by_operation"]["create"] == 1
    new(client)


def test_quota_is_a_bad_request_that_names_the_limit(server: LocalDaytona, client: Daytona) -> None:
    server.faults(quota_sandboxes=1)
    first = new(client)
    with pytest.raises(DaytonaBadRequestError, match=r"limit exceeded\. Maximum allowed"):
        new(client)
    first.stop()
    new(client)


@pytest.mark.parametrize(
    ("operation", "kind", "error"),
    [("delete", "conflict", DaytonaConflictError), ("delete", "server_error", DaytonaInternalServerError)],
)
def test_a_failed_delete_leaves_the_sandbox(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox, operation: str, kind: str, error: type[Exception]
) -> None:
    server.fail(operation, kind)
    with pytest.raises(error):
        sandbox.delete()
    assert client.get(sandbox.id).state == "started"
    sandbox.delete()


def test_create_can_lose_its_reply_after_the_row_exists(server: LocalDaytona, client: Daytona) -> None:
    server.fail("create", "disconnect", after=True)
    with pytest.raises(DaytonaError):
        new(client, name="orphan")
    assert client.get("orphan").state == "started"


def test_create_can_hang_after_the_row_exists(server: LocalDaytona, client: Daytona) -> None:
    server.faults(create_hang_s=1.0)
    thread = threading.Thread(target=lambda: new(client, name="hanging"))
    thread.start()
    until(lambda: _state(client, client.get("hanging")) == "started" if _exists(client, "hanging") else False)
    assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()


def _exists(client: Daytona, name: str) -> bool:
    try:
        client.get(name)
    except DaytonaNotFoundError:
        return False
    return True


def test_a_slow_start_is_polled_and_delete_meanwhile_conflicts(server: LocalDaytona, client: Daytona) -> None:
    server.faults(create_delay_s=0.7, create_hold_s=0)
    thread = threading.Thread(target=lambda: new(client, name="slow"))
    thread.start()
    until(lambda: _exists(client, "slow"))
    slow = client.get("slow")
    with pytest.raises(DaytonaConflictError):
        slow.delete()
    thread.join(20)
    assert client.get("slow").state == "started"


def test_a_sandbox_can_end_in_error(server: LocalDaytona, client: Daytona) -> None:
    server.faults(create_state="error")
    with pytest.raises(DaytonaError, match="no runner"):
        new(client, name="broken")
    broken = client.get("broken")
    assert broken.state == "error"
    broken.delete()


def test_list_lags_while_get_does_not(server: LocalDaytona, client: Daytona) -> None:
    old = new(client)
    time.sleep(0.6)
    server.faults(list_lag_s=0.5)
    fresh = new(client)
    old.delete()
    listed = {row.id for row in client.list()}
    assert old.id in listed
    assert fresh.id not in listed
    assert client.get(fresh.id).state == "started"
    until(lambda: {row.id for row in client.list()} == {fresh.id})


@pytest.mark.parametrize("event", ["stop", "archive", "error", "destroy"])
def test_a_sandbox_can_be_changed_under_its_client(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox, event: str
) -> None:
    server.happen(event, sandbox.id)
    expected = {"stop": "stopped", "archive": "archived", "error": "error", "destroy": None}[event]
    assert _state(client, sandbox) == expected
    with pytest.raises(DaytonaNotFoundError if event == "destroy" else DaytonaBadRequestError):
        sandbox.process.exec("true")
    if event in ("stop", "archive"):
        sandbox.start()
        assert sandbox.process.exec("echo back").result == "back\n"


def test_a_lost_runner_is_a_bare_bad_gateway_and_the_row_stays_started(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox
) -> None:
    server.happen("lose_runner", sandbox.id)
    with pytest.raises(DaytonaError) as caught:
        sandbox.process.exec("true")
    assert caught.value.status_code == 502
    assert _state(client, sandbox) == "started"
    server.happen("find_runner", sandbox.id)
    assert sandbox.process.exec("echo back").result == "back\n"


def test_a_dead_daemon_ends_in_stopped_without_a_reason(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox
) -> None:
    server.happen("kill_agent", sandbox.id)
    until(lambda: _state(client, sandbox) == "stopped")
    assert client.get(sandbox.id).error_reason is None


def test_latency_is_added_to_every_direction_of_a_round_trip(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox
) -> None:
    client.get(sandbox.id)
    server.faults(latency_ms=40)
    started = time.monotonic()
    for _ in range(3):
        client.get(sandbox.id)
    took = (time.monotonic() - started) / 3
    assert 0.08 <= took < 0.5
    body = b"x" * 3_000_000
    sandbox.fs.upload_file(body, "big")
    assert sandbox.fs.download_file("big") == body


def test_the_access_log_counts_requests_and_bytes(server: LocalDaytona, sandbox: Sandbox) -> None:
    server.reset_requests()
    sandbox.fs.upload_file(b"x" * 100_000, "a")
    sandbox.fs.download_file("a")
    sandbox.process.exec("true")
    told = server.requests()
    assert told["by_operation"] == {"upload": 1, "download": 1, "execute": 1}
    assert told["count"] == 3
    upload, download, _ = told["requests"]
    assert 100_000 < upload["bytes_in"] < 101_000
    assert 100_000 <= download["bytes_out"] < 101_000
    server.reset_requests()
    assert server.requests()["count"] == 0
