"""Runs the Python of the page "Coming from pydantic-ai", with a model that says what it is told to."""

import ast
import asyncio
import inspect
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


def say(messages, info):
    """Counts and pays, and then answers by the tool for the output."""
    returned = {part.tool_name: part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)}
    if "pay" in returned:
        assert (returned["count"].content, returned["pay"].content) == (12, "paid 5 euro"), returned
        output = info.output_tools[0].name
        return ModelResponse(parts=[ToolCallPart(output, {"stalls": 12, "euro": 5}, "c3")])
    return ModelResponse(parts=[ToolCallPart("count", {"area": 3}, "c1"), ToolCallPart("pay", {"euro": 5}, "c2")])


model = FunctionModel(say)
page = compile(sys.stdin.read(), "coming_from_pydantic_ai.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run():
    """The page awaits at its top level, as in a notebook."""
    ran = eval(page, globals())
    if inspect.isawaitable(ran):
        await ran


asyncio.run(run())
assert (result.output.stalls, result.output.euro) == (12, 5), result.output
print("the page runs")
