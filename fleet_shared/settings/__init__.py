"""Settings: declared once with bounds and help, read once from the environment, passed down as frozen values.

This room is the only reader of the process environment.
"""

from fleet_shared.settings.declared import (
    SECTIONS,
    EventSettings,
    FileSettings,
    Option,
    OwnerSettings,
    RlmSettings,
    RunSettings,
    SandboxSettings,
    Settings,
    TurnSettings,
    WebSettings,
    options,
)
from fleet_shared.settings.environment import BadSetting, LoadedSettings, load_settings, process_environment
from fleet_shared.settings.models import ModelChoice, ModelEndpoint, Models, load_models
from fleet_shared.settings.process import Process, Role, load_process

__all__ = [
    "SECTIONS",
    "BadSetting",
    "EventSettings",
    "FileSettings",
    "LoadedSettings",
    "ModelChoice",
    "ModelEndpoint",
    "Models",
    "Option",
    "OwnerSettings",
    "Process",
    "RlmSettings",
    "Role",
    "RunSettings",
    "SandboxSettings",
    "Settings",
    "TurnSettings",
    "WebSettings",
    "load_models",
    "load_process",
    "load_settings",
    "options",
    "process_environment",
]
