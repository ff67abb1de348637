"""Fault rules, intervals, exit reports, session logs and process measures, each without a server."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet_worker.local_daytona import expiry
from fleet_worker.local_daytona.faults import Faults
from fleet_worker.local_daytona.inside import files, wire
from fleet_worker.local_daytona.jail import interpreter, usage
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.toolbox.session import split_log
from fleet_worker.local_daytona.toolbox.terminal import exit_report

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_rule_fires_as_often_as_it_says_after_what_it_skips() -> None:
    faults = Faults()
    faults.change({"rules": [{"operation": "create", "kind": "rate_limit", "times": 2, "skip": 1}]})
    taken = [faults.take("create", "control") for _ in range(5)]
    assert [rule.kind if rule else None for rule in taken] == [None, "rate_limit", "rate_limit", None, None]
    assert faults.take("delete", "control") is None


def test_a_rule_may_name_a_part_and_last_for_ever() -> None:
    faults = Faults()
    faults.change({"add_rules": [{"operation": "toolbox", "kind": "bad_gateway", "times": -1}]})
    assert all(faults.take("execute", "toolbox") for _ in range(10))
    assert faults.take("get", "control") is None
    faults.reset()
    assert faults.take("execute", "toolbox") is None


@pytest.mark.parametrize("wanted", [{"latency": 1}, {"rules": [{"operation": "x", "kind": "nonsense"}]}])
def test_unknown_faults_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a rule|unknown faults"):
        Faults().change(wanted)


def row(**more: Any) -> Sandbox:
    fields: dict[str, Any] = {
        "id": "i", "name": "n", "wanted": {}, "labels": {}, "env": {}, "autostop": 15, "autopause": 0,
        "autoarchive": 100, "autodelete": -1, "ttl": 0, "jail": None, "state": "started",
        "created": NOW, "updated": NOW, "active": NOW,
    }  # fmt: skip
    return Sandbox(**{**fields, **more})


@pytest.mark.parametrize(
    ("more", "minutes", "expected"),
    [
        ({}, 14.9, None),
        ({}, 15.1, "stop"),
        ({"sockets": {print}}, 99, None),
        ({"autostop": 0}, 9999, None),
        ({"ttl": 5}, 5.1, "destroy"),
        ({"state": "stopped", "stopped": NOW}, 99, None),
        ({"state": "stopped", "stopped": NOW}, 101, "archive"),
        ({"state": "stopped", "stopped": NOW, "autodelete": 3}, 3.1, "destroy"),
        ({"state": "stopped", "stopped": NOW, "autodelete": 0}, 0, "destroy"),
        ({"state": "creating"}, 99, None),
    ],
)
def test_intervals_ask_for_what_they_say(more: dict[str, Any], minutes: float, expected: str | None) -> None:
    assert expiry.due(row(**more), NOW + timedelta(minutes=minutes), minute_s=60) == expected


@pytest.mark.parametrize(
    ("status", "report"),
    [
        (0, {"exitCode": 0}),
        (1, {"exitCode": 1, "exitReason": "non-zero exit"}),
        (130, {"exitCode": 130, "exitReason": "Ctrl+C"}),
        (-9, {"exitCode": 137, "exitReason": "SIGKILL"}),
        (-15, {"exitCode": 143, "exitReason": "SIGTERM"}),
        (-1, {"exitCode": 129, "exitReason": "signal 1"}),
    ],
)
def test_an_exit_status_is_worded_as_the_daemon_does(status: int, report: dict[str, Any]) -> None:
    assert exit_report(status) == report


def test_a_log_is_split_by_its_marks() -> None:
    log = b"\x01\x01\x01out\n\x02\x02\x02err\n\x01\x01\x01more\n"
    assert split_log(log) == (b"out\nmore\n", b"err\n")
    assert split_log(b"unmarked") == (b"", b"")


def test_a_process_tree_is_seen_generation_by_generation() -> None:
    inner = "import time; print(1, flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        generations = usage.descendants(usage.all_processes(), parent.pid)
        assert [len(level) for level in generations] == [1]
        seen = generations[0][0]
        assert usage.children(parent.pid) == [seen.pid]
        assert seen.session == parent.pid
        assert 0 < (usage.proportional_memory(seen.pid) or 0) <= seen.resident
        os.killpg(parent.pid, 9)
    assert usage.process(seen.pid) is None or usage.process(seen.pid) != seen
    assert usage.process(2**30) is None


def test_disk_use_counts_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    (outer / "big").write_bytes(b"x" * 4_000_000)
    (inner / "one").write_bytes(b"x" * 1_000_000)
    os.link(inner / "one", inner / "two")
    (inner / "link").symlink_to(outer)
    assert 1_000_000 <= usage.tree_bytes(inner) < 1_200_000


def test_nameless_files_are_found_through_their_descriptors(tmp_path: Path) -> None:
    memory = os.memfd_create("x")
    os.write(memory, b"x" * 1_000_000)
    with (tmp_path / "gone").open("wb") as gone:
        (tmp_path / "gone").unlink()
        gone.write(b"x" * 2_000_000)
        gone.flush()
        on_disk, in_memory = usage.nameless_bytes([os.getpid()], tmp_path.stat().st_dev)
    os.close(memory)
    assert on_disk >= 2_000_000
    assert in_memory >= 1_000_000


def test_a_message_of_any_size_arrives_with_its_descriptors() -> None:
    import socket

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for size in (1, wire.PACKET_LIMIT, 3_000_000):
            read_end, write_end = os.pipe()
            wire.send(ours, {"text": "x" * size}, (write_end,))
            received = wire.receive(theirs)
            assert received is not None
            message, fds = received
            assert message == {"text": "x" * size}
            os.write(fds[0], b"!")
            assert os.read(read_end, 1) == b"!"
            for fd in (read_end, write_end, *fds):
                os.close(fd)
        ours.close()
        assert wire.receive(theirs) is None


def test_a_file_to_read_must_be_a_regular_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path), str(tmp_path / "pipe"), "/dev/null"):
        with pytest.raises(files.Refused):
            files.open_file(path, write=False)


def test_listing_goes_as_deep_as_asked(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/f").write_text("x")
    assert [entry["name"] for entry in files.listing(str(tmp_path), 1)] == ["a"]
    assert [entry["name"] for entry in files.listing(str(tmp_path), 2)] == ["a", "b", "f"]


def test_the_first_interpreter_to_try_is_the_servers_own() -> None:
    first = interpreter.candidates()[0]
    assert first.version == sys.version
    failed = interpreter.failure([sys.executable, "-c", first.proof()])
    assert failed is None
    assert interpreter.failure([sys.executable, "-c", "raise SystemExit('broken')"]) == "broken"
