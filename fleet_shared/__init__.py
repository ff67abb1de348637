"""What the processes share: the domain, the wire contract, settings, the SQL store and messaging."""

from typing import Final

__version__: Final = "0.1.0"
