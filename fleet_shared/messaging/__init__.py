"""Wake-ups, live copies and the queue: everything that goes through Redis, and the writer of the event log.

Losing Redis loses nothing: whatever passes here is also in SQL, or is a draft.
"""
