"""A client of the HTTP and SSE API that others may use too: requests, resumable streams, verified downloads.

from fleet_term.client import Client
client = Client("http://127.0.0.1:8000", token)
session = client.create_session("Reading")
attachment = client.upload(Path("report.txt"))
turn = client.submit(session["id"], "How many lines has the file?", attachment_ids=[attachment["id"]])
for event in client.follow(turn["id"]):
    print(event.type, event.data)
"""

from fleet_term.client.api import Client
from fleet_term.client.errors import ApiError, ConnectionFailed, IntegrityError, OutcomeUnknown
from fleet_term.client.stream import Event, EventStream

__all__ = ["ApiError", "Client", "ConnectionFailed", "Event", "EventStream", "IntegrityError", "OutcomeUnknown"]
