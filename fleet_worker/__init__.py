"""Runs Turns: the reasoning loop, the sandbox that executes its code, and the recovery of what was lost."""
