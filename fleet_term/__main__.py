"""Entry point of `fleet-term`."""

import sys

from fleet_term.cli import main as run


def main() -> None:
    """Run and exit."""
    sys.exit(run())


if __name__ == "__main__":
    main()
