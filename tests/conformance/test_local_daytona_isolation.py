"""Attempts to break out of a sandbox of the loopback server and to harm the machine from inside. Safe as root."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, DaytonaError, Sandbox

from tests.fakes.daytona import LocalDaytona, local_daytona, start_local_daytona, until

MEMORY_MIB, PROCESSES, DISK_MIB = 200, 40, 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaytona]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "secret.txt").write_text("host secret")
    with local_daytona(folder, memory_mib=MEMORY_MIB, processes=PROCESSES, disk_mib=DISK_MIB) as running:
        yield running


@pytest.fixture
def client(server: LocalDaytona, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Daytona:
    monkeypatch.chdir(tmp_path)
    return Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))


def new(client: Daytona) -> Sandbox:
    return client.create(CreateSandboxFromSnapshotParams(name=f"t-{uuid.uuid4().hex[:12]}", auto_stop_interval=0))


@pytest.fixture
def sandbox(client: Daytona) -> Iterator[Sandbox]:
    made = new(client)
    yield made
    made.delete()


def python(sandbox: Sandbox, code: str, timeout: int = 60) -> str:
    ran = sandbox.process.exec("python3 - <<'END' 2>&1\n" + code + "\nEND", timeout=timeout)
    return str(ran.result).strip()


def status(server: LocalDaytona, sandbox: Sandbox) -> dict[str, object]:
    return next(row for row in server.status()["sandboxes"] if row["id"] == sandbox.id)


def below(pid: int) -> set[int]:
    """A process and everything below it, as the machine sees it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, size = {pid}, 0
    while len(found) != size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return {number for number in found if number in parents}


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def test_bubblewrap_isolates_and_the_user_is_not_root(server: LocalDaytona, sandbox: Sandbox) -> None:
    assert server.status()["isolation"] == "bubblewrap"
    assert python(sandbox, "import os; print(os.getuid())") == "1000"
    pids = below(int(str(status(server, sandbox)["pid"])))
    if os.geteuid() == 0:
        owners = {Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0] for pid in pids}
        assert all(64000 <= int(owner) < 65000 for owner in owners)
    assert "CapEff:\t0000000000000000" in python(sandbox, "print(open('/proc/self/status').read())")


def test_files_of_the_machine_cannot_be_reached(server: LocalDaytona, sandbox: Sandbox) -> None:
    secret = server.data_dir.parent / "secret.txt"
    attempts = [
        str(secret),
        f"/proc/1/root{secret}",
        "/etc/shadow",
        "/root/.bashrc",
        str(server.data_dir),
        "/var/log",
        "/sys",
    ]
    attempts += [
        f"../../../../../..{secret}",
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/kcore",
        "/boot",
        "/dev/vda",
        "/dev/sda",
    ]
    told = python(
        sandbox,
        f"""
import os
for path in {attempts!r}:
    try:
        opened = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10)
        print("REACHED", path, opened)
    except OSError:
        pass
print(sorted(os.listdir("/home")), "REACHED" if set(os.listdir("/")) - set({_visible()!r}) else "usual")
""",
    )
    assert told == "['daytona'] usual"
    with pytest.raises(DaytonaError):
        sandbox.fs.download_file(str(secret))
    assert b"root:" in sandbox.fs.download_file("/etc/passwd")
    assert sandbox.fs.download_file("/etc/passwd").count(b"\n") == 3


def _visible() -> list[str]:
    system = ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "usr"]
    return [*system, "attachments", "home", "mnt", "root", "run", "tmp", "var", "workspace"]


def test_a_link_leads_the_file_api_nowhere_but_into_the_sandbox(server: LocalDaytona, sandbox: Sandbox) -> None:
    secret = server.data_dir.parent / "secret.txt"
    sandbox.process.exec(f"ln -s {secret} leak; ln -s / top; mkfifo pipe")
    with pytest.raises(DaytonaError):
        sandbox.fs.download_file("leak")
    with pytest.raises(DaytonaError):
        sandbox.fs.download_file(f"top{secret}")
    with pytest.raises(DaytonaError):
        sandbox.fs.download_file("pipe")
    with pytest.raises(DaytonaError):
        sandbox.fs.upload_file(b"x", "leak")
    for name in ("nul\0byte", "\ud800", "x" * 5000, ""):
        with pytest.raises(Exception):  # noqa: B017 - the SDK itself chokes on some
            sandbox.fs.download_file(name)
    assert sandbox.process.exec("echo alive").result == "alive\n"
    assert secret.read_text() == "host secret"


def test_environment_and_processes_of_the_machine_are_not_visible(sandbox: Sandbox) -> None:
    told = python(
        sandbox,
        """
import os
numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
print(len(numbers) <= 4, sorted(os.environ))
""",
    )
    assert told.startswith("True ")
    allowed = {
        "DAYTONA_SANDBOX_ID",
        "HOME",
        "LANG",
        "LOGNAME",
        "OLDPWD",
        "PATH",
        "PWD",
        "SHLVL",
        "USER",
        "_",
        "LC_CTYPE",
    }
    assert set(eval(told.removeprefix("True "))) <= allowed


def test_there_is_no_network_not_even_the_machines_loopback(server: LocalDaytona, sandbox: Sandbox) -> None:
    port = int(server.origin.rpartition(":")[2])
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0fleet-test-{os.getpid()}")
        abstract.listen()
        told = python(
            sandbox,
            f"""
import os, socket
for family, address in [(socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_INET, ("1.1.1.1", 53)),
                        (socket.AF_UNIX, "\\0fleet-test-{os.getpid()}")]:
    s = socket.socket(family); s.settimeout(3)
    try:
        s.connect(address); print("REACHED", address)
    except OSError:
        pass
print([name for _, name in socket.if_nameindex()])
""",
        )
    assert told == "['lo']"


def test_sandboxes_cannot_see_each_other(client: Daytona, sandbox: Sandbox) -> None:
    other = new(client)
    other.fs.upload_file(b"private", "/tmp/private.txt")
    other.process.exec("nohup sleep 77777 >/dev/null 2>&1 &")
    assert sandbox.process.exec("cat /tmp/private.txt").exit_code != 0
    assert "77777" not in sandbox.process.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").result
    other.delete()


def test_new_namespaces_mounts_and_the_agent_are_out_of_reach(sandbox: Sandbox) -> None:
    told = python(
        sandbox,
        """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), libc.mount(b"none", b"/mnt", b"tmpfs", 0, None), libc.ptrace(16, 1, 0, 0))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT):
    os.kill(1, number)
for path in ("/usr/x", "/etc/x", "/dev/x", "/opt/fleet/agent/agent.py"):
    try:
        open(path, "a"); print("WROTE", path)
    except OSError:
        pass
""",
    )
    # Without --disable-userns (old bubblewrap) a user namespace can be made; it gives no rights over anything outside.
    assert told in ("-1 -1 -1", "0 -1 -1")
    assert sandbox.process.exec("echo alive").result == "alive\n"


def test_a_fork_bomb_is_bounded_and_leaves_the_server_responsive(
    server: LocalDaytona, client: Daytona, sandbox: Sandbox
) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    sandbox.fs.upload_file(code.encode(), "bomb.py")
    sandbox.process.exec("nohup python3 bomb.py >/dev/null 2>&1 &")
    pid = int(str(status(server, sandbox)["pid"]))
    end = time.monotonic() + 2
    most = 0
    while time.monotonic() < end:
        most = max(most, len(below(pid)))
        time.sleep(0.05)
    assert 5 < most <= PROCESSES + 3
    other = new(client)
    assert other.process.exec("echo fine").result == "fine\n"
    other.delete()


def test_a_memory_hog_is_killed_and_its_sandbox_lives(server: LocalDaytona, sandbox: Sandbox) -> None:
    hog = "import time; x = bytearray(600 << 20); time.sleep(20); print('after'.upper())"
    assert "AFTER" not in python(sandbox, hog)
    assert "MemoryError" in python(sandbox, "bytearray(100 << 30)")
    assert sandbox.process.exec("echo alive").result == "alive\n"
    assert {row["limit"] for row in status(server, sandbox)["killed"]} == {"memory"}  # type: ignore[attr-defined]


def test_the_process_that_offers_itself_is_killed_first(sandbox: Sandbox) -> None:
    sandbox.fs.upload_file(
        b"import time\nopen('/proc/self/oom_score_adj','w').write('1000')\nx = bytearray(90 << 20)\ntime.sleep(600)\n",
        "offered.py",
    )
    sandbox.fs.upload_file(b"import time\nx = bytearray(140 << 20)\ntime.sleep(600)\n", "bigger.py")
    sandbox.process.exec("nohup python3 offered.py >/dev/null 2>&1 &")
    sandbox.process.exec("nohup python3 bigger.py >/dev/null 2>&1 &")
    until(lambda: "offered" not in sandbox.process.exec("pgrep -fa '^python3 '").result)
    assert "bigger" in sandbox.process.exec("pgrep -fa '^python3 '").result


@pytest.mark.parametrize(
    "hog",
    [
        "import os; fd = os.memfd_create('x')\nwhile True: os.write(fd, b'x' * (1 << 20))",
        "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
        "import os\nk = []\nwhile 1:\n    f = open('x', 'wb'); os.remove('x'); f.write(b'x' * (8 << 20)); k.append(f)",
        "n = 0\nwhile True:\n    n += 1; open(f'f{n}', 'wb').write(b'x' * (1 << 20))",
    ],
    ids=["memory-file", "shared-memory", "unlinked-files", "many-files"],
)
def test_a_filler_of_disk_or_memory_files_is_stopped(server: LocalDaytona, sandbox: Sandbox, hog: str) -> None:
    python(sandbox, hog, timeout=60)
    usage = sum(path.lstat().st_blocks for path in server.data_dir.rglob("*")) * 512
    assert usage < (1024 + DISK_MIB) << 20
    until(lambda: sandbox.process.exec("pgrep -c python3 | tail -1").result.strip() == "1")  # the agent
    assert sandbox.process.exec("echo alive").result == "alive\n"


def test_delete_leaves_no_process_and_no_file(server: LocalDaytona, client: Daytona) -> None:
    made = new(client)
    made.process.exec("nohup setsid sleep 99999 >/dev/null 2>&1 & mkdir -p a/b; touch a/b/c; chmod 000 a/b a")
    python(made, "import os\nfor _ in range(3000): os.mkdir('d' * 9); os.chdir('d' * 9)")
    made.process.create_session("s")
    pids = below(int(str(status(server, made)["pid"])))
    assert len(pids) >= 4
    made.delete()
    assert not alive(pids)
    assert made.id not in {entry.name for entry in (server.data_dir / "sandboxes").iterdir()}


def test_kill_9_of_the_server_ends_every_process_and_a_restart_removes_every_file(tmp_path: Path) -> None:
    server = start_local_daytona(tmp_path)
    client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
    made = new(client)
    made.process.exec("nohup setsid sleep 99999 >/dev/null 2>&1 &")
    pids = below(int(str(status(server, made)["pid"])))
    assert len(pids) >= 3
    with pytest.raises(AssertionError, match="another server uses"):
        start_local_daytona(tmp_path)
    os.kill(server.process.pid, signal.SIGKILL)
    server.stop()
    until(lambda: not alive(pids), what="end of every process")
    again = start_local_daytona(tmp_path)
    assert not list((again.data_dir / "sandboxes").iterdir())
    again.stop()


def test_without_bubblewrap_the_server_starts_only_when_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="allow-unisolated"):
        start_local_daytona(tmp_path)
    server = start_local_daytona(tmp_path, allow_unisolated=True)
    try:
        assert server.status()["isolation"] == "none"
        made = new(Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url)))
        made.fs.upload_file(b"x", "here.txt")
        assert made.process.exec("ls").result == "here.txt\n"
        made.process.exec("nohup setsid sleep 99999 >/dev/null 2>&1 &")
        pids = below(int(str(status(server, made)["pid"])))
        assert len(pids) >= 2
        made.delete()
        assert not alive(pids)
        other = new(Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url)))
        other.process.exec("nohup setsid sleep 99999 >/dev/null 2>&1 &")
        pids = below(int(str(status(server, other)["pid"])))
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not alive(pids), what="end of every process")
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_ordinary_user_can_start_it_too(tmp_path: Path) -> None:
    nobody = 65534
    try:
        subprocess.run([sys.executable, "-c", "import aiohttp"], user=nobody, group=nobody, cwd="/", env={}, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this interpreter cannot be run by another user")
    os.chown(tmp_path, nobody, nobody)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    server = start_local_daytona(tmp_path, as_user=nobody)
    try:
        made = new(Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url)))
        assert made.process.exec("id -u; touch /workspace/x && echo ok").result == "1000\nok\n"
        made.delete()
    finally:
        server.stop()
