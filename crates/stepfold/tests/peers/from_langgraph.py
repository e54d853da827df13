"""Runs the Python of the page "Coming from LangGraph", with a model that says what it is told to."""

import operator
import sqlite3
import sys
from typing import Annotated

from langchain.agents import AgentState, create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, interrupt


class Scripted(GenericFakeChatModel):
    """A model with written replies, which may be offered tools."""

    def bind_tools(self, tools, **_):
        assert [tool.name for tool in tools] == ["count", "pay"]
        return self


calls = [
    {"name": "count", "args": {"area": 3}, "id": "c1"},
    {"name": "pay", "args": {"euro": 5}, "id": "c2"},
]
answer = "Area 3 has 12 stalls; 5 euro are paid."
model = Scripted(messages=iter([AIMessage("", tool_calls=calls), AIMessage(answer)]))
connection = sqlite3.connect(":memory:", check_same_thread=False)

exec(compile(sys.stdin.read(), "coming_from_langgraph.md", "exec"))

state = agent.get_state(config).values
assert state["counted"] == [3], state
assert state["messages"][-1].text == answer, state["messages"][-1]
results = {message.name: message.text for message in state["messages"] if message.type == "tool"}
assert results["pay"] == "paid 5 euro", results
assert "12" in [message.text for message in state["messages"] if message.type == "tool"]
print("the page runs")
