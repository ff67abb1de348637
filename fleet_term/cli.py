"""The command line of `fleet-term`: what it takes, and which exit status tells what (cli-and-environment.md)."""

import argparse
import contextlib
import getpass
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet_term import lists
from fleet_term.ask import Ask, follow, latest_session, report, run_ask, status_of
from fleet_term.client import ApiError, Client
from fleet_term.client.errors import ClientError
from fleet_term.config import environ
from fleet_term.errors import Exit, UsageError
from fleet_term.local import LocalConnection, LocalError, Progress, connect
from fleet_term.local_commands import run_local
from fleet_term.saved import Server, save_server, saved_server
from fleet_term.view import Style, safe


def main(arguments: list[str] | None = None) -> int:
    """Run `fleet-term`; the exit status."""
    chosen = parser().parse_args(arguments)
    form = getattr(chosen, "form", "text")
    try:
        return int(_run(chosen))
    except KeyboardInterrupt:
        return Exit.CANCELLED
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # nobody reads: nothing more may be flushed at exit
        return Exit.READER_GONE
    except LocalError as error:
        report(error, form)
        return Exit.UNREACHABLE
    except (ClientError, UsageError, OSError) as error:
        report(error, form)
        return status_of(error)


def parser() -> argparse.ArgumentParser:
    """The command line as argparse knows it; completion and help are made from it."""
    top = argparse.ArgumentParser(prog="fleet-term", description="Ask questions that need reasoning, Python and files.")
    _server_options(top)
    top.add_argument("--session", metavar="ID", help="go on with this Session")
    top.add_argument("--continue", dest="continues", action="store_true", help="go on with the last Session")
    top.add_argument("--accessible", action="store_true", help="plain lines, no redrawing")
    top.add_argument("--theme", choices=["auto", "mono"], default="auto")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_ask(commands)
    lists.add_commands(commands, _server_options)
    local = commands.add_parser("local", help="local mode: everything on this machine")
    local.add_argument("action", choices=["start", "status", "logs", "stop"])
    local.add_argument("part", nargs="?", help="whose log: web, worker, redis, daytona or supervisor")
    local.add_argument("--follow", "-f", action="store_true", help="go on showing the log")
    _local_options(local)
    doctor = commands.add_parser("doctor", help="what works, and what to do about the rest")
    _server_options(doctor)
    completion = commands.add_parser("completion", help="shell completion")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    commands.add_parser("reset", help="repair a terminal that a program left broken")
    return top


def _add_ask(commands: Any) -> None:
    ask = commands.add_parser("ask", help="ask one question and print the answer")
    _server_options(ask)
    ask.add_argument("prompt", nargs="?", metavar="QUESTION", help="the question; - or nothing reads standard input")
    ask.add_argument("-a", "--attach", action="append", type=Path, default=[], metavar="FILE")
    ask.add_argument("--skill", action="append", default=[], metavar="NAME")
    where = ask.add_mutually_exclusive_group()
    where.add_argument("--session", metavar="ID")
    where.add_argument("--new", action="store_true", help="in a new Session (the default)")
    where.add_argument("--continue", dest="continues", action="store_true", help="in the last Session")
    form = ask.add_mutually_exclusive_group()
    form.add_argument("--json", dest="form", action="store_const", const="json", default="text")
    form.add_argument("--jsonl", dest="form", action="store_const", const="jsonl")
    ask.add_argument("--timeout", type=float, metavar="SECONDS", help="stop watching after that; the Turn goes on")
    ask.add_argument("--detach", action="store_true", help="do not wait for the answer")
    ask.add_argument("--model", help="a model of GET /api/models")


def _server_options(target: argparse.ArgumentParser) -> None:
    # Given before or after the command; what is not given must not overwrite the other place.
    target.add_argument("--url", default=argparse.SUPPRESS, help="the server (FLEET_URL)")
    target.add_argument("--token", default=argparse.SUPPRESS, help="your token (FLEET_TOKEN)")
    target.add_argument(
        "--local", action="store_true", default=argparse.SUPPRESS, help="run everything on this machine"
    )
    target.add_argument("--color", choices=["auto", "always", "never"], default=argparse.SUPPRESS)
    _local_options(target)


def _local_options(target: argparse.ArgumentParser) -> None:
    target.add_argument("--data-dir", type=Path, default=argparse.SUPPRESS, help="where local mode keeps everything")
    target.add_argument("--keep", action="store_true", default=argparse.SUPPRESS, help="go on without terminals")
    target.add_argument("--allow-unisolated", action="store_true", default=argparse.SUPPRESS)


def _run(chosen: argparse.Namespace) -> Exit | int:
    environment = environ()
    match chosen.command:
        case "ask":
            return _ask(chosen, environment)
        case "local":
            return run_local(
                chosen.action,
                chosen.part,
                _data_dir(chosen),
                follow=chosen.follow,
                connect=lambda: _connect(chosen, keep=True),
            )
        case "completion":
            sys.stdout.write(lists.completion(parser(), chosen.shell))
            return Exit.ANSWERED
        case "reset":
            return _reset()
        case None:
            return _interactive(chosen, environment)
    with _client(chosen, environment) as (client, command):
        if chosen.command == "turns" and chosen.action == "follow":
            ask = Ask(form=chosen.form, timeout_s=None)
            return follow(client, chosen.id, ask=ask, style=_style(chosen, environment), follow_line=command)
        return lists.run(client, chosen)


def _ask(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Exit:
    with _client(chosen, environment) as (client, command):
        ask = Ask(
            prompt=chosen.prompt,
            files=tuple(chosen.attach),
            skills=tuple(chosen.skill),
            session=chosen.session,
            continues=chosen.continues,
            form=chosen.form,
            timeout_s=chosen.timeout,
            detach=chosen.detach,
            options={"model": chosen.model} if chosen.model else {},
        )
        return run_ask(client, ask, style=_style(chosen, environment), command=command)


def _interactive(chosen: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise UsageError("there is no terminal here; use: fleet-term ask QUESTION")
    from fleet_term.app import App  # noqa: PLC0415  # the screen is not needed by the other commands
    from fleet_term.screen import Screen, style_for  # noqa: PLC0415

    with _client(chosen, environment, interactive=True) as (client, command):
        session: dict[str, Any] | None = None
        if chosen.session:
            session = client.get(f"/api/sessions/{chosen.session}")
        elif chosen.continues:
            session = latest_session(client)
        color = "never" if chosen.theme == "mono" else getattr(chosen, "color", "auto")
        style = style_for(environment, color=color, is_tty=True)
        app = App(client, Screen(environment), style, session)
        status = app.run(_greeting(client, chosen, style))
        if app.session_id is not None:
            sys.stdout.write(f"Continue with: {command} --session {app.session_id}\n")
        return status


def _greeting(client: Client, chosen: argparse.Namespace, style: Style) -> list[str]:
    lines = [style.bold("fleet") + style.dim(f" · {client.url} · /help shows commands")]
    models = client.get("/api/models")
    model = str(models["default"])
    lines.append(style.dim(f"model {safe(model)}"))
    if model.startswith("demo/"):
        note = "This is the demo model: it follows rules, no language model answers. FLEET_MODEL names a real one."
        lines.append(style.tool(f"! {note}"))
    return [*lines, ""]


@contextlib.contextmanager
def _client(
    chosen: argparse.Namespace, environment: Mapping[str, str], *, interactive: bool = False
) -> Iterator[tuple[Client, str]]:
    """A client of the server that was chosen, and the command that reaches it again."""
    if getattr(chosen, "local", False):
        connection = _connect(chosen)
        try:
            folder = f" --data-dir {connection.data_dir}" if hasattr(chosen, "data_dir") else ""
            yield Client(connection.url, connection.token), f"fleet-term --local{folder}"
        finally:
            connection.close()
        return
    server = _server(chosen, environment, interactive=interactive)
    yield Client(server.url, server.token), "fleet-term"


def _connect(chosen: argparse.Namespace, *, keep: bool = False) -> LocalConnection:
    def on_progress(progress: Progress) -> None:
        if progress.done:
            sys.stderr.write(f"· {progress.text} ({progress.elapsed_ms} ms)\n")
        sys.stderr.flush()

    connection = connect(
        _data_dir(chosen),
        keep=keep or getattr(chosen, "keep", False),
        allow_unisolated=getattr(chosen, "allow_unisolated", False),
        on_progress=on_progress,
    )
    for note in connection.notes:
        sys.stderr.write(f"! {note}\n")
    sys.stderr.flush()
    return connection


def _server(chosen: argparse.Namespace, environment: Mapping[str, str], *, interactive: bool) -> Server:
    saved = saved_server(environment)
    url = getattr(chosen, "url", None) or environment.get("FLEET_URL") or (saved.url if saved else None)
    token = getattr(chosen, "token", None) or environment.get("FLEET_TOKEN")
    if token is None and saved is not None and saved.url == url:
        token = saved.token
    if url and token:
        return Server(url, token)
    if not interactive:
        raise UsageError("no server is known: give --url and --token (or FLEET_URL and FLEET_TOKEN), or use --local")
    return _first_run(environment, url)


def _first_run(environment: Mapping[str, str], url: str | None) -> Server:
    """Ask for a server and a token, try them, and save them."""
    sys.stdout.write("No server is known yet. To try Fleet on this machine alone: fleet-term --local\n")
    url = url or input("Server (https://…): ").strip()
    token = getpass.getpass("Token: ").strip()
    if not url or not token:
        raise UsageError("a server and a token are needed")
    server = Server(url, token)
    try:
        Client(url, token).get("/api/meta")
    except ApiError as error:
        raise UsageError(f"{url} refuses the token: {error.detail}") from error
    sys.stdout.write(f"Saved in {save_server(environment, server)}\n")
    return server


def _style(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Style:
    color = getattr(chosen, "color", "auto")
    if color != "always" and (color == "never" or not sys.stderr.isatty()):
        return Style()
    from fleet_term.screen import style_for  # noqa: PLC0415  # blessed is loaded for colours alone

    return style_for(environment, color=color, is_tty=sys.stderr.isatty())


def _data_dir(chosen: argparse.Namespace) -> Path | None:
    return getattr(chosen, "data_dir", None)


def _reset() -> Exit:

    sys.stdout.write("\x1b[?2026l\x1b[?2004l\x1b[?1004l\x1b[<u\x1b[?25h\x1b[0m\x1b[?1049l")
    sys.stdout.flush()
    subprocess.run(["stty", "sane"], check=False)
    return Exit.ANSWERED
