"""The same client, of the Python SDK. argv: the command of the server; or its URL and a token."""

import asyncio
import json
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.types import ElicitResult


async def answer(context, params):
    return ElicitResult(action="accept", content={"decision": "approve"})


async def main() -> None:
    command, *args = sys.argv[1:]
    seen = {"progress": []}

    async def on_progress(progress, total, message):
        seen["progress"].append(message)

    if command.startswith("http"):
        http = create_mcp_http_client(headers={"Authorization": f"Bearer {args[0]}"})
        server = streamable_http_client(command, http_client=http)
    else:
        server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
    async with Client(server, elicitation_callback=answer) as client:
        seen["tools"] = [tool.name for tool in (await client.list_tools()).tools]

        async def call(message):
            arguments = {"message": message, "session": "shop"}
            return await client.call_tool("clerk", arguments, progress_callback=on_progress)

        seen["text"] = (await call("pay the bill")).structured_content["text"]
        seen["again"] = (await call("and now?")).structured_content["text"]
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        transcript = next(uri for uri in uris if uri.endswith("/shop/transcript"))
        seen["transcript"] = (await client.read_resource(transcript)).contents[0].text
        try:
            await client.call_tool("nobody", {})
        except Exception as error:
            seen["unknown"] = str(error)
    print(json.dumps(seen))


asyncio.run(main())
