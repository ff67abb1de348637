"""The revisions, named by a four-digit number."""
