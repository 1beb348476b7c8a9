// The Node libraries of OpenAI and Anthropic: `node sdk.mjs openai|anthropic URL KEY MODEL IDLE,IDLE`.
// Run in the folder that has the libraries. It prints one JSON line: "ok" or the failure, by case.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const [library, url, key, model, idle] = process.argv.slice(2);
const load = createRequire(`${process.cwd()}/`);
const ask = [{ role: "user", content: "Say hello." }];
const tokens = { max_tokens: 8 };

function openai() {
  const OpenAI = load("openai").OpenAI;
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
  const create = (more, own = client) => own.chat.completions.create({ model, messages: ask, ...tokens, ...more });
  return {
    async chat(more = {}, apiKey = key) {
      const found = await create(more, apiKey === key ? client : new OpenAI({ baseURL: `${url}/v1`, apiKey }));
      assert.ok(found.usage.completion_tokens > 0);
      assert.ok(found.choices[0].message.content);
    },
    async *stream() {
      for await (const chunk of await create({ stream: true })) {
        if (chunk.choices[0]?.delta?.content) yield chunk.choices[0].delta.content;
      }
    },
    large: { user: "x".repeat(300_000) },
    check(error) {
      assert.equal(error.status, 404);
      assert.deepEqual([error.code, error.type, error.param], ["model_not_found", "invalid_request_error", "model"]);
    },
  };
}

function anthropic() {
  const Anthropic = load("@anthropic-ai/sdk").Anthropic;
  const client = new Anthropic({ baseURL: url, apiKey: key });
  const request = (more) => ({ model, messages: ask, ...tokens, ...more });
  return {
    async chat(more = {}, apiKey = key) {
      const own = apiKey === key ? client : new Anthropic({ baseURL: url, apiKey });
      const found = await own.messages.create(request(more));
      assert.ok(found.usage.output_tokens > 0);
      assert.ok(found.content[0].text);
    },
    async *stream() {
      for await (const event of await client.messages.create(request({ stream: true }))) {
        if (event.type === "content_block_delta") yield event.delta.text;
      }
    },
    large: { metadata: { user_id: "x".repeat(300_000) } },
    check(error) {
      assert.equal(error.status, 404);
      assert.equal(error.error.error.type, "not_found_error");
    },
  };
}

const client = library === "openai" ? openai() : anthropic();

async function whole() {
  const pieces = [];
  for await (const piece of client.stream()) pieces.push(piece);
  assert.ok(pieces.length > 1, JSON.stringify(pieces));
}

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("it was answered");
}

const cases = {
  chat: () => client.chat(),
  stream: whole,
  async error() {
    const began = Date.now();
    client.check(await refusal(() => client.chat({ model: "no-such-model" })));
    assert.equal((await refusal(() => client.chat({}, "ssk_wrong"))).status, 401);
    assert.ok(Date.now() - began < 10_000, "the errors were repeated");
  },
  "large body": () => client.chat(client.large),
  async leave() {
    for await (const _ of client.stream()) break;
    await client.chat();
  },
};
for (const seconds of idle.split(",")) {
  cases[`idle ${seconds} s`] = async () => {
    await sleep(Number(seconds) * 1000);
    await client.chat();
    await whole();
  };
}

const found = {};
for (const [name, call] of Object.entries(cases)) {
  try {
    await call();
    found[name] = "ok";
  } catch (error) {
    found[name] = `${error.constructor.name}: ${String(error.message).slice(0, 300)}`;
  }
}
console.log(JSON.stringify(found));
