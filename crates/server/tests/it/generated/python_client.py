"""A visit with the client of `examples/clients/python`, over connections that are cut."""
import os
import sys

sys.path.insert(0, os.environ["GENERATED"])
from stepfold_client import Client, Refused

APP, SESSION = "clerk", "monday"
client = Client(os.environ["SITE"], os.environ["TOKEN"])


def problem(call, kind):
    try:
        call()
    except Refused as refused:
        assert refused.problem["kind"] == kind, refused
        return
    raise AssertionError(f"expected {kind}")


assert client.login() is None
assert [row["app"] for row in client.list_apps()["apps"]] == [APP]
assert client.create_session(APP, {"id": SESSION})["id"] == SESSION
problem(lambda: client.create_session(APP, {"id": SESSION}), "exists")
client.send(APP, SESSION, {"text": "pay the bill"}, idempotency_key="first")
versions = []
for event in client.live(APP, SESSION, after=0):
    if event.event == "committed":
        versions.append(event.data["version"])
    requests = event.data.get("requests") or event.data.get("pending") or []
    if requests and len(versions) < 4:
        decisions = {request["id"]: "approve" for request in requests}
        try:
            client.decide(APP, SESSION, {"decisions": decisions})
        except Refused as refused:
            # A stream that was cut tells the requests again.
            assert refused.problem["kind"] in ("decided", "not_pending"), refused
    if event.event == "ended":
        break
assert versions == list(range(1, len(versions) + 1)) and len(versions) > 3, versions
assert client.read_state(APP, SESSION)["values"] == {"spent": 5}
assert client.list_events(APP, SESSION, limit=2)["next"] == 2
assert client.fork(APP, SESSION, {"at": 1, "id": "fork"})["parent"]["id"] == SESSION
assert client.compare(APP, SESSION, with_="fork")["common"] == 1
assert client.replay(APP, SESSION)["same"]
problem(lambda: client.rewind(APP, SESSION, {"to": 1, "expected": 1}), "conflict")
print("done")
