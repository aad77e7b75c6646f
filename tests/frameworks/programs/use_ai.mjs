// ai: generateText and streamText with two tools, over Responses (the default of @ai-sdk/openai) and Chat Completions.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { LIMIT, SYSTEM, calculator, note, run } from "./case.mjs";

const tools = {
  calculator: tool({
    description: "Calculates an arithmetic expression.",
    inputSchema: z.object({ expression: z.string() }),
    execute: async (given) => calculator(given),
  }),
  note: tool({
    description: "Takes a note.",
    inputSchema: z.object({ title: z.string(), rows: z.array(z.array(z.number().int())) }),
    execute: async (given) => note(given),
  }),
};

async function ask(model, { question, stream }) {
  const asked = { model, system: SYSTEM, prompt: question, tools, stopWhen: stepCountIs(5), maxRetries: 0, abortSignal: AbortSignal.timeout(LIMIT) };
  if (!stream) return (await generateText(asked)).text;
  let failed;
  const result = streamText({ ...asked, onError: ({ error }) => { failed = error; } });
  await result.consumeStream();
  if (failed) throw failed;
  return await result.text;
}

run({
  responses: (given) => ask(createOpenAI()(given.model), given),
  chat: (given) => ask(createOpenAI().chat(given.model), given),
  compatible: (given) => {
    const provider = createOpenAICompatible({ name: "endpoint", baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
    return ask(provider(given.model), given);
  },
});
