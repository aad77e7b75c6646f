// What the JavaScript programs share, as case.py does for Python: the two tools, and how the conversations are had and told.

export const LIMIT = 25_000;
export const SYSTEM = "You are a careful assistant.";

let seen = [];

const product = (text) => text.split("*").reduce((value, factor) => value * Number(factor), 1);

export function calculator({ expression }) {
  seen.push(["calculator", { expression }]);
  return String(expression.split("+").reduce((total, part) => total + product(part), 0));
}

export function note({ title, rows }) {
  seen.push(["note", { title, rows }]);
  return `noted — ${title}`;
}

// Has the conversations that the environment lists, with the agent that it names. An agent is an async function of a case.
export async function run(agents) {
  for (const given of JSON.parse(process.env.AGL_CASES)) {
    seen = [];
    process.env.OPENAI_BASE_URL = given.base_url;
    process.env.OPENAI_API_KEY = given.key;
    let view;
    try {
      view = { answer: await agents[process.env.AGL_AGENT](given), seen };
    } catch (error) {
      console.error(error);
      view = { error: `${error.name}: ${String(error.message).slice(0, 500)}`, seen };
    }
    console.log("\nAGL-CASE " + JSON.stringify({ id: given.id, ...view }));
  }
  process.exit(0);
}
