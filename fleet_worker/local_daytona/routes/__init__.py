"""The HTTP and WebSocket surface: one file per part of the API, each with its table of routes."""
