"""Addresses, sizes and secrets of one process: the fixed names of cli-and-environment.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fleet_shared.settings.environment import BadSetting


class Role(StrEnum):
    """Which kind of process reads the settings; broker and pool sizes depend on it."""

    WEB = "web"
    WORKER = "worker"
    FLOWER = "flower"


@dataclass(frozen=True, slots=True)
class Process:
    """What a process is told by its platform. Secrets do not show in its repr."""

    role: Role
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    port: int
    web_concurrency: int
    worker_concurrency: int
    on_dyno: bool
    secret_key: str = field(repr=False)
    metrics_token: str | None = field(repr=False)
    snapshot: str | None
    log_format: Literal["json", "text"]
    log_level: str


def load_process(environment: Mapping[str, str], role: Role) -> Process:
    """The process settings of `environment`. Raises BadSetting naming the first variable that is missing or wrong."""
    on_dyno = bool(environment.get("DYNO"))
    log_format = environment.get("FLEET_LOG_FORMAT", "json").lower()
    if log_format not in ("json", "text"):
        raise BadSetting("FLEET_LOG_FORMAT", "must be json or text")
    log_level = environment.get("FLEET_LOG_LEVEL", "INFO").upper()
    if log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadSetting("FLEET_LOG_LEVEL", "must be DEBUG, INFO, WARNING or ERROR")
    secret_key = environment.get("FLEET_SECRET_KEY", "")
    if role is Role.WEB and not secret_key:
        raise BadSetting("FLEET_SECRET_KEY", "is not set; give it a long random text")
    return Process(
        role=role,
        database_url=database_url(environment),
        redis_url=redis_url(environment),
        port=_number(environment, "PORT", 8000, minimum=1, maximum=65_535),
        web_concurrency=_number(environment, "WEB_CONCURRENCY", 1, minimum=1, maximum=64),
        worker_concurrency=_number(environment, "WORKER_CONCURRENCY", 16, minimum=1, maximum=256),
        on_dyno=on_dyno,
        secret_key=secret_key,
        metrics_token=environment.get("FLEET_METRICS_TOKEN") or None,
        snapshot=environment.get("FLEET_SNAPSHOT") or None,
        log_format=cast(Literal["json", "text"], log_format),
        log_level=log_level,
    )


def database_url(environment: Mapping[str, str]) -> str:
    """The SQLAlchemy URL of `DATABASE_URL`; Heroku's `postgres://` is understood. Raises BadSetting."""
    url = environment.get("DATABASE_URL", "").strip()
    if not url:
        raise BadSetting("DATABASE_URL", "is not set; give it the SQLAlchemy URL of a PostgreSQL or SQLite database")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadSetting("DATABASE_URL", "is not a URL such as postgresql://user@host/name or sqlite:////path/file.db")
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        return f"postgresql+psycopg://{rest}"
    if scheme in ("sqlite", "sqlite+pysqlite"):
        if environment.get("DYNO"):
            raise BadSetting("DATABASE_URL", "names SQLite, which a dyno does not keep; attach a PostgreSQL database")
        return f"sqlite+pysqlite://{rest}"
    raise BadSetting("DATABASE_URL", f"has the scheme {scheme}; use postgresql or sqlite")


def redis_url(environment: Mapping[str, str]) -> str:
    """`REDIS_URL`, with certificate checks spelled out for TLS. Raises BadSetting.

    A dyno's Redis has a self-signed chain, so `ssl_cert_reqs=none` is the default there and `required` elsewhere
    (facts: kombu verifies nothing unless told, redis-py always does).
    """
    url = environment.get("REDIS_URL", "").strip()
    if not url:
        raise BadSetting("REDIS_URL", "is not set; give it a redis://, rediss:// or unix:// URL")
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise BadSetting("REDIS_URL", "must start with redis://, rediss:// or unix://")
    if parts.scheme != "rediss":
        return url
    query = dict(parse_qsl(parts.query))
    query.setdefault("ssl_cert_reqs", "none" if environment.get("DYNO") else "required")
    return urlunsplit(parts._replace(query=urlencode(query)))


def _number(environment: Mapping[str, str], name: str, default: int, *, minimum: int, maximum: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not minimum <= int(text) <= maximum:
        raise BadSetting(name, f"must be a whole number from {minimum} to {maximum}")
    return int(text)
