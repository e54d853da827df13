"""A visit with the client that openapi-python-client makes of the document."""
import json
import os
import sys

sys.path.insert(0, os.environ["GENERATED"])
from generated import AuthenticatedClient
from generated.api.runs import cancel, decide, resume, send
from generated.api.server import list_apps, login, read_principal
from generated.api.sessions import (
    compare, create_session, delete_session, fork, list_events, list_sessions, read_session, read_state, replay, rewind,
)
from generated.models import Fork, NewDecisions, NewMessage, NewSession, Problem, Rewind

APP, SESSION = "clerk", "monday"
client = AuthenticatedClient(base_url=os.environ["SITE"], token=os.environ["TOKEN"])


def good(response, status):
    assert response.status_code == status, response
    return response.parsed


def problem(response, status, kind):
    assert response.status_code == status and isinstance(response.parsed, Problem), response
    assert response.parsed.kind == kind, response.parsed


def follow(last):
    """The events of the live stream from the beginning up to the first of this name."""
    path, events = f"/api/v1/apps/{APP}/sessions/{SESSION}/live?after=0", []
    with client.get_httpx_client().stream("GET", path) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
            if line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                # What waits already is in the first event.
                if events[-1] == "hello" and data["pending"]:
                    events.append("waiting")
                if events[-1] == last:
                    return events


assert [row.app for row in good(list_apps.sync_detailed(client=client), 200).apps] == [APP]
assert good(read_principal.sync_detailed(client=client), 200).user == "ada"
assert login.sync_detailed(client=client).status_code == 204
made = good(create_session.sync_detailed(APP, client=client, body=NewSession(id=SESSION)), 201)
assert (made.id, made.version) == (SESSION, 0)
problem(create_session.sync_detailed(APP, client=client, body=NewSession(id=SESSION)), 409, "exists")
problem(read_session.sync_detailed(APP, "never", client=client), 404, "unknown_session")

message = NewMessage(text="pay the bill")
accepted = good(send.sync_detailed(APP, SESSION, client=client, body=message, idempotency_key="first"), 202)
again = good(send.sync_detailed(APP, SESSION, client=client, body=message, idempotency_key="first"), 202)
assert accepted.invocation == again.invocation
assert follow("waiting")[-1] == "waiting"
detail = good(read_session.sync_detailed(APP, SESSION, client=client), 200)
[request] = detail.pending
assert request.call.name == "pay" and str(detail.status) == "waiting", detail
[listed] = good(list_sessions.sync_detailed(APP, client=client, stopped=True), 200).sessions
assert listed.id == SESSION

decisions = NewDecisions.from_dict({"decisions": {request.id: "approve"}})
decided = good(decide.sync_detailed(APP, SESSION, client=client, body=decisions), 202)
assert decided.requests == [request.id]
assert "ended" in follow("ended")
problem(decide.sync_detailed(APP, SESSION, client=client, body=decisions), 409, "decided")
problem(resume.sync_detailed(APP, SESSION, client=client), 409, "nothing_to_resume")

page = good(list_events.sync_detailed(APP, SESSION, client=client, limit=2), 200)
assert [row.version for row in page.events] == [1, 2] and page.next_ == 2, page
assert good(read_state.sync_detailed(APP, SESSION, client=client), 200).values.to_dict() == {"spent": 5}
forked = good(fork.sync_detailed(APP, SESSION, client=client, body=Fork(at=1, id="fork")), 201)
assert forked.parent.id == SESSION
assert good(compare.sync_detailed(APP, SESSION, client=client, with_="fork"), 200).common == 1
assert good(replay.sync_detailed(APP, SESSION, client=client), 200).same
assert good(cancel.sync_detailed(APP, SESSION, client=client), 202).cancelled is False
problem(rewind.sync_detailed(APP, SESSION, client=client, body=Rewind(to=1, expected=1)), 409, "conflict")
problem(delete_session.sync_detailed(APP, SESSION, client=client), 403, "forbidden")
print("done")
