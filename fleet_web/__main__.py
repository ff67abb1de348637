"""Entry file of the web: `python -m fleet_web serve | db upgrade|check | token create|list|rotate|revoke`."""

import argparse
import os
import sys

from fleet_shared.domain.errors import FleetError
from fleet_shared.settings import BadSetting, Role, load_models, load_process, load_settings, process_environment
from fleet_shared.settings.process import database_url
from fleet_shared.store import Database, owners, schema


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status. `serve` replaces this process by gunicorn."""
    parser = argparse.ArgumentParser(prog="python -m fleet_web", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the API")
    db = commands.add_parser("db", help="the database schema").add_subparsers(dest="action", required=True)
    db.add_parser("upgrade", help="bring the schema to this release's version")
    db.add_parser("check", help="tell whether the schema fits this release")
    token = commands.add_parser("token", help="tokens of owners").add_subparsers(dest="action", required=True)
    create = token.add_parser("create", help="make a token; prints its secret once")
    create.add_argument("name")
    create.add_argument("--owner", help="whom it speaks for; the token's own name when not given")
    token.add_parser("list", help="every token, without secrets")
    for name, text in (("rotate", "give a token a new secret"), ("revoke", "end a token")):
        token.add_parser(name, help=text).add_argument("name")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "serve":
                return _serve()
            case "db":
                return _db(chosen.action)
            case _:
                return _token(chosen)
    except (BadSetting, FleetError) as error:
        sys.stderr.write(f"fleet_web: {error}\n")
        return 2


def _serve() -> int:
    environment = process_environment()
    process = load_process(environment, Role.WEB)
    load_models(environment)
    for variable in load_settings(environment).unknown:
        sys.stderr.write(f"fleet_web: warning: {variable} is not known to this release\n")
    database = Database(process.database_url)
    schema.require_current(database)
    database.close()
    gunicorn = [sys.executable, "-m", "gunicorn", "--config", "python:fleet_web.gunicorn", "fleet_web.wsgi:app"]
    sys.stdout.flush()
    os.execv(sys.executable, gunicorn)


def _db(action: str) -> int:
    database = Database(database_url(process_environment()))
    if action == "upgrade":
        sys.stdout.write(f"schema {schema.upgrade(database)}\n")
        return 0
    schema.require_current(database)
    differences = schema.differences(database)
    for difference in differences:
        sys.stderr.write(f"differs: {difference}\n")
    sys.stdout.write(f"schema {schema.head()}\n")
    return 1 if differences else 0


def _token(chosen: argparse.Namespace) -> int:
    database = Database(database_url(process_environment()))
    schema.require_current(database)
    match chosen.action:
        case "create":
            secret = database.run(lambda tx: owners.create_token(tx, chosen.name, owner_name=chosen.owner))
            sys.stdout.write(secret + "\n")
        case "rotate":
            sys.stdout.write(database.run(lambda tx: owners.rotate_token(tx, chosen.name)) + "\n")
        case "revoke":
            database.run(lambda tx: owners.revoke_token(tx, chosen.name))
        case _:
            for item in database.run(owners.tokens):
                state = f"revoked {item.revoked_at:%Y-%m-%d}" if item.revoked_at else "live"
                sys.stdout.write(f"{item.name}\t{item.owner_name}\t{item.created_at:%Y-%m-%d}\t{state}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
