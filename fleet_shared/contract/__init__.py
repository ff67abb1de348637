"""The wire: JSON and SSE on one side, domain values on the other. The only room that knows the format."""
