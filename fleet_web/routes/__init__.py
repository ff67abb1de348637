"""One file per resource: reads the request, calls a command or a query, writes the answer."""
