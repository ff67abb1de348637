"""What runs inside a sandbox as its first process: standard library alone, Python 3.9 or newer, mounted read-only."""
