"""Migrations of the schema, in order; each adds first, and removes only what no running version uses."""
