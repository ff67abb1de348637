"""What runs in one sandbox for a client: terminals, sessions, single commands. Knows sandboxes only as jails."""
