"""The terminal client and local mode. Speaks HTTP to the server and knows nothing of its insides."""
