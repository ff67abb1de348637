"""The demo model: decides by rules, needs no key; the Python it writes does the real work."""
