"""Entry file of a gunicorn worker: builds the application and starts its threads in the worker's own process."""

from fleet_shared.logs import start_logging
from fleet_shared.settings import Role, load_process, process_environment
from fleet_web.app import create_app, make_parts, start_parts

_environment = process_environment()
_process = load_process(_environment, Role.WEB)
start_logging(form=_process.log_format, level=_process.log_level)
parts = make_parts(_environment)
app = create_app(parts)
start_parts(parts)
