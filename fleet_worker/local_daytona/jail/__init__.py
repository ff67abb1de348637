"""Isolation of sandboxes: what they see, as whom they run, what they may use, and the talk with the agent inside."""
