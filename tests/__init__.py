"""The tests of Fleet, and the command that runs all of them: `python -m tests`."""
