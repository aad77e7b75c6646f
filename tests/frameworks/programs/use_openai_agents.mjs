// @openai/agents: one agent with two tools, over Responses (its default) and Chat Completions.

import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import { z } from "zod";
import { SYSTEM, calculator, note, run } from "./case.mjs";

const tools = [
  tool({
    name: "calculator",
    description: "Calculates an arithmetic expression.",
    parameters: z.object({ expression: z.string() }),
    execute: async (given) => calculator(given),
  }),
  tool({
    name: "note",
    description: "Takes a note.",
    parameters: z.object({ title: z.string(), rows: z.array(z.array(z.number().int())) }),
    execute: async (given) => note(given),
  }),
];

async function ask({ model, question, stream }, useResponses) {
  const agent = new Agent({ name: "assistant", instructions: SYSTEM, model, tools });
  // One client is kept for a process; each conversation here has a URL of its own.
  const runner = new Runner({ modelProvider: new OpenAIProvider({ useResponses }), tracingDisabled: true });
  if (!stream) return (await runner.run(agent, question)).finalOutput;
  const result = await runner.run(agent, question, { stream: true });
  await result.completed;
  return result.finalOutput;
}

run({ responses: (given) => ask(given, true), chat: (given) => ask(given, false) });
