// The client of AG-UI: text, a tool, the state, an approval as an interrupt, and what it resends.
const assert = require("node:assert/strict");
const { HttpAgent } = require(`${process.env.PEERS}/${process.env.CLIENT}`);

const agent = new HttpAgent({
  url: `${process.env.SITE}/agui/clerk`, threadId: "monday",
  headers: { authorization: `Bearer ${process.env.TOKEN}` },
  // The state is the server's.
  initialState: { spent: 1000000 },
});
const run = async (parameters) => {
  const events = [];
  await agent.runAgent(parameters, { onEvent: ({ event }) => { events.push(event); } });
  return events;
};
const types = (events) => events.map((event) => event.type);

(async () => {
  agent.addMessage({ id: "u1", role: "user", content: "pay the bill" });
  const first = await run({ runId: "r1" });
  const finished = first.at(-1);
  assert.equal(finished.type, "RUN_FINISHED");
  assert.equal(finished.outcome.type, "interrupt", JSON.stringify(finished));
  const [interrupt] = finished.outcome.interrupts;
  assert.equal(interrupt.toolCallId, "c1");
  assert.ok(!("spent" in agent.state) || agent.state.spent === 0, JSON.stringify(agent.state));
  const called = agent.messages.find((message) => message.toolCalls?.length);
  assert.equal(called.toolCalls[0].function.name, "pay");

  const answer = { interruptId: interrupt.id, status: "resolved", payload: { approved: true } };
  const second = await run({ runId: "r2", resume: [answer] });
  assert.deepEqual(second.at(-1).outcome, { type: "success" }, JSON.stringify(second));
  assert.ok(types(second).includes("STATE_DELTA"), types(second).join());
  assert.equal(agent.state.spent, 5);
  assert.equal(agent.messages.at(-1).content, "paid");
  assert.ok(agent.messages.some((message) => message.role === "tool" && message.toolCallId === "c1"));

  // The whole history is sent again, and nothing of it counts twice.
  agent.addMessage({ id: "u2", role: "user", content: "thanks" });
  const third = await run({ runId: "r3" });
  assert.equal(agent.messages.at(-1).content, "welcome");
  assert.deepEqual(third.at(-1).outcome, { type: "success" });
  assert.equal(agent.state.spent, 5);
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
