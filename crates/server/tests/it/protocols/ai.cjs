// The AI SDK: a tool, an approval, data parts, and a stream that is opened again.
const assert = require("node:assert/strict");
const { AbstractChat, DefaultChatTransport } = require(`${process.env.PEERS}/${process.env.CLIENT}`);

class State {
  messages = []; status = "ready"; error = undefined;
  pushMessage(message) { this.messages = [...this.messages, message]; }
  popMessage() { this.messages = this.messages.slice(0, -1); }
  replaceMessage(index, message) { this.messages = this.messages.map((old, at) => (at === index ? message : old)); }
  snapshot(value) { return structuredClone(value); }
}
class Chat extends AbstractChat {
  constructor(init) { super({ ...init, state: new State() }); }
}
const errors = [];
const chat = new Chat({
  id: "monday",
  transport: new DefaultChatTransport({
    api: `${process.env.SITE}/ai/clerk`, headers: { authorization: `Bearer ${process.env.TOKEN}` },
  }),
  onError: (error) => errors.push(error),
});
const parts = (type) => chat.lastMessage.parts.filter((part) => part.type === type);
const said = () => parts("text").map((part) => part.text).join("|");

(async () => {
  await chat.sendMessage({ text: "pay the bill" });
  assert.deepEqual(errors, []);
  const [tool] = parts("dynamic-tool");
  assert.deepEqual([tool.toolName, tool.toolCallId, tool.state], ["pay", "c1", "approval-requested"]);

  await chat.addToolApprovalResponse({ id: tool.approval.id, approved: true });
  await chat.sendMessage();
  assert.deepEqual(errors, []);
  assert.equal(chat.messages.length, 2, "the message goes on");
  const [paid] = parts("dynamic-tool");
  assert.deepEqual([paid.state, paid.output], ["output-available", { euro: 5 }]);
  assert.equal(parts("data-state")[0].data.spent, 5);
  assert.equal(said(), "paid");

  await chat.sendMessage({ text: "thanks" });
  assert.equal(said(), "welcome");
  // Nothing runs: there is nothing to open again.
  const before = chat.messages.length;
  await chat.resumeStream();
  assert.deepEqual([errors, chat.messages.length, chat.status], [[], before, "ready"]);
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
