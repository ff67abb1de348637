"""The HTTP and SSE API: accepts Turns, streams their events, serves files. Never imports dspy or daytona."""
