"""An agent of ADK whose model is a script: it pays, and says so. `adk eval` imports it."""

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types


class Script(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        if llm_request.contents[-1].parts[-1].function_response:
            part = types.Part(text="I have paid 12.")
        else:
            part = types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 12}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def pay(amount: int) -> str:
    return "paid"


root_agent = Agent(name="clerk", model=Script(model="script"), tools=[pay])
