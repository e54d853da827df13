"""A visit with the client in Python that OpenAPI Generator makes of the document."""
import json
import os
import sys

sys.path.insert(0, os.environ["GENERATED"])
import openapi_client as made_of
from openapi_client.exceptions import ApiException

APP, SESSION = "clerk", "monday"
configuration = made_of.Configuration(host=os.environ["SITE"], access_token=os.environ["TOKEN"])
client = made_of.ApiClient(configuration)
server, sessions, runs = made_of.ServerApi(client), made_of.SessionsApi(client), made_of.RunsApi(client)


def problem(call, status, kind):
    try:
        call()
    except ApiException as error:
        assert error.status == status and error.data.kind == kind, error
        return
    raise AssertionError(f"expected {status} {kind}")


def follow(last):
    """The events of the live stream from the beginning up to the first of this name."""
    response, events, text = runs.live_without_preload_content(APP, SESSION, after="0"), [], b""
    for chunk in iter(lambda: response.read1(1 << 16), b""):
        text += chunk
        *blocks, text = text.split(b"\n\n")
        for block in blocks:
            events += [line[7:].decode() for line in block.split(b"\n") if line.startswith(b"event: ")]
            data = [json.loads(line[6:]) for line in block.split(b"\n") if line.startswith(b"data: ")]
            # What waits already is in the first event.
            if data and data[0].get("pending"):
                events.append("waiting")
        if last in events:
            response.close()
            return events


assert [row.app for row in server.list_apps().apps] == [APP]
assert server.read_principal().user == "ada"
server.login()
made = sessions.create_session(APP, made_of.NewSession(id=SESSION))
assert (made.id, made.version) == (SESSION, 0)
problem(lambda: sessions.create_session(APP, made_of.NewSession(id=SESSION)), 409, "exists")
problem(lambda: sessions.read_session(APP, "never"), 404, "unknown_session")

message = made_of.NewMessage(text="pay the bill")
accepted = runs.send(APP, SESSION, message, idempotency_key="first")
assert accepted.invocation == runs.send(APP, SESSION, message, idempotency_key="first").invocation
assert "waiting" in follow("waiting")
detail = sessions.read_session(APP, SESSION)
[request] = detail.pending
assert request.call.name == "pay" and detail.status == "waiting", detail
[listed] = sessions.list_sessions(APP, stopped=True).sessions
assert listed.id == SESSION

decisions = made_of.NewDecisions.from_dict({"decisions": {request.id: "approve"}})
assert runs.decide(APP, SESSION, decisions).requests == [request.id]
assert "ended" in follow("ended")
problem(lambda: runs.decide(APP, SESSION, decisions), 409, "decided")
problem(lambda: runs.resume(APP, SESSION), 409, "nothing_to_resume")

page = sessions.list_events(APP, SESSION, limit=2)
assert [row.version for row in page.events] == [1, 2] and page.next == 2, page
assert sessions.read_state(APP, SESSION).values == {"spent": 5}
assert sessions.fork(APP, SESSION, made_of.Fork(at=1, id="fork")).parent.id == SESSION
assert sessions.compare(APP, SESSION, "fork").common == 1
assert sessions.replay(APP, SESSION).same
assert runs.cancel(APP, SESSION).cancelled is False
problem(lambda: sessions.rewind(APP, SESSION, made_of.Rewind(to=1, expected=1)), 409, "conflict")
problem(lambda: sessions.delete_session(APP, SESSION), 403, "forbidden")
print("done")
