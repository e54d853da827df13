"""The client of the Agent Development Kit, in Python. argv: the URL of the server, the token."""

import asyncio
import json
import sys

import httpx
from google.adk.cli.adk_web_server import RunAgentRequest
from google.adk.cli.conformance.adk_web_server_client import AdkWebServerClient
from google.genai import types


def answer(call, **response):
    part = types.FunctionResponse(id=call.id, name=call.name, response=response)
    return types.Content(role="user", parts=[types.Part(function_response=part)])


def say(text):
    return types.Content(role="user", parts=[types.Part(text=text)])


async def main() -> None:
    url, token = sys.argv[1:]
    client = AdkWebServerClient(base_url=url)
    # It has no option for it.
    client._client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    seen = {"version": (await client.get_version_data())["version"]}
    title = {"__session_metadata__": {"displayName": "the bill"}}
    session = await client.create_session(app_name="clerk", user_id="user", state=title)
    seen["title"] = session.state["__session_metadata__"]["displayName"]

    async def run(message):
        request = RunAgentRequest(app_name="clerk", user_id="user", session_id=session.id, new_message=message)
        return [event async for event in client.run_agent(request)]

    events = await run(say("pay the bill"))
    calls = [call for event in events for call in event.get_function_calls()]
    seen["calls"] = [call.name for call in calls]
    seen["waits"] = calls[-1].id in events[-1].long_running_tool_ids
    events = await run(answer(calls[-1], confirmed=True))
    seen["responses"] = [found.response for event in events for found in event.get_function_responses()]
    seen["text"] = events[-1].content.parts[0].text
    seen["state"] = {key: value for event in events for key, value in event.actions.state_delta.items()}
    again = await run(say("and again?"))
    asked = again[-1].get_function_calls()[0]
    seen["rejected"] = (await run(answer(asked, confirmed=False)))[-1].content.parts[0].text
    asked = (await run(say("and less?")))[-1].get_function_calls()[0]
    events = await run(answer(asked, confirmed=True, payload={"euro": 1}))
    seen["modified"] = {key: value for event in events for key, value in event.actions.state_delta.items()}

    stored = await client.get_session(app_name="clerk", user_id="anyone", session_id=session.id)
    seen["authors"] = [event.author for event in stored.events]
    seen["ids"] = len({event.id for event in stored.events}) == len(stored.events)
    seen["stored"] = stored.state
    written = await client.update_session(app_name="clerk", user_id="user", session_id=session.id, state_delta={"note": "late"})
    seen["written"] = written.state["note"]
    await client.delete_session(app_name="clerk", user_id="user", session_id=session.id)
    try:
        await client.get_session(app_name="clerk", user_id="user", session_id=session.id)
    except httpx.HTTPStatusError as error:
        seen["gone"] = error.response.status_code
    await client.close()
    print(json.dumps(seen))


asyncio.run(main())
