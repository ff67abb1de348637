"""The only importer of the Daytona SDK: sandboxes, their files, and raw streams to their terminals.

Vendor errors become the domain's at this door. Credentials are passed explicitly: what a foreign `.env` in the working
directory says is never used for them.
"""

from fleet_worker.sandbox.daytona.client import Daytona
from fleet_worker.sandbox.daytona.machine import Machine
from fleet_worker.sandbox.daytona.values import Account, KnownSandbox, SandboxSpec

__all__ = ["Account", "Daytona", "KnownSandbox", "Machine", "SandboxSpec"]
