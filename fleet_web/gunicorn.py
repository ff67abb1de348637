"""Settings of the gunicorn server, read by it as a configuration file (`python:fleet_web.gunicorn`)."""

import signal
import threading
from types import FrameType
from typing import Any

from fleet_shared.settings import Role, load_process, load_settings, process_environment

_process = load_process(process_environment(), Role.WEB)
_web = load_settings(process_environment()).settings.web

bind = f"{_web.host}:{_process.port}"
workers = _process.web_concurrency
worker_class = "gthread"
# A stream holds a thread; gthread queues what finds no thread without limit, so streams are capped below that.
threads = _web.max_streams + _web.threads
timeout = 60
graceful_timeout = 8
keepalive = 5
control_socket_disable = True
limit_request_line = 8190
limit_request_fields = 60
limit_request_field_size = 8190
accesslog = None
errorlog = "-"
loglevel = "warning"
forwarded_allow_ips = "*" if _process.on_dyno else "127.0.0.1"


def post_worker_init(worker: Any) -> None:
    """End open streams at once when the process is told to stop: their clients connect elsewhere."""
    from fleet_web.wsgi import parts  # noqa: PLC0415  # in the worker's process, after its application was loaded

    def stop(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=parts.hub.stop, daemon=True).start()
        worker.handle_exit(number, frame)

    signal.signal(signal.SIGTERM, stop)
