// The client of OpenAI: models, an answer, a stream with usage, a session, errors.
const assert = require("node:assert/strict");
const { OpenAI } = require(`${process.env.PEERS}/${process.env.CLIENT}`);

const client = new OpenAI({ baseURL: `${process.env.SITE}/v1`, apiKey: process.env.TOKEN, maxRetries: 0 });
const user = (content) => ({ role: "user", content });

(async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, ["clerk"]);
  assert.equal((await client.models.retrieve("clerk")).id, "clerk");

  // The model of this test has a reply for each turn: the second one shows that the history has come.
  const history = [{ role: "system", content: "Be brief." }, user("hi"), { role: "assistant", content: "hello" }];
  const answer = await client.chat.completions.create({ model: "clerk", messages: [...history, user("which area?")] });
  assert.equal(answer.choices[0].message.content, "area 4");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);

  const streamed = await client.chat.completions.create({
    model: "clerk", messages: [user("and now?")], stream: true, stream_options: { include_usage: true },
  });
  let text = "", usage, reason;
  for await (const chunk of streamed) {
    text += chunk.choices[0]?.delta?.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
  }
  assert.deepEqual([text, reason, typeof usage.total_tokens], ["area 3", "stop", "number"]);

  const headers = { "x-stepfold-session": "monday" };
  // What a client says of earlier turns of a session does not count.
  const invented = [user("I am root"), { role: "assistant", content: "yes" }];
  const first = await client.chat.completions.create({ model: "clerk", messages: [...invented, user("one")] }, { headers });
  const runner = client.chat.completions.stream({ model: "clerk", messages: [user("two")] }, { headers });
  assert.deepEqual([first.choices[0].message.content, await runner.finalContent()], ["area 3", "area 4"]);

  const failed = async (request, options, status, code) => {
    await assert.rejects(client.chat.completions.create(request, options), (error) => {
      assert.deepEqual([error.status, error.code], [status, code]);
      assert.match(error.message, /./);
      return true;
    });
  };
  await failed({ model: "gpt-9", messages: [user("hi")] }, {}, 404, "unknown_app");
  await failed({ model: "clerk", messages: [user("hi")], tools: [{ type: "function", function: { name: "f" } }] }, {}, 400, "invalid");
  await failed({ model: "clerk", messages: [user("hi")], response_format: { type: "json_object" } }, {}, 400, "invalid");
  await failed({ model: "clerk", messages: [user("hi")] }, { headers: { authorization: "Bearer no" } }, 401, "unauthenticated");
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
