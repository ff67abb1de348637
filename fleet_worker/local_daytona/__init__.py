"""A loopback server that speaks the Daytona API, for local mode and tests. Its sandboxes are plain processes in
bubblewrap."""
