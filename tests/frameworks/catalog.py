"""The frameworks, as they are installed, run and set up. What the page says of each is here; what they do is
measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BOTH = (False, True)
STREAMS = (True,)

WIRES = {"chat completions": "chat", "responses": "responses", "messages": "messages", "gemini": "gemini"}


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run a framework: an agent of its program. ``sets`` is all that its user has to write, ``streams`` the
    ways it can be asked to reply.

    ``known`` says by case (`plain`, or `plain.stream` where only streaming is meant, or `*`) why its record is not one
    path, or its ids do not come back; a case that is exact all the same is a failure, and nothing excuses a wrong
    answer.
    """

    agent: str
    wire: str
    sets: str
    streams: tuple[bool, ...] = BOTH
    limits: str = ""
    known: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def spoken(self) -> str:
        """The API's name in the record."""
        return WIRES[self.wire.split(",", 1)[0]]

    def why(self, case: str, stream: bool) -> str | None:
        """Why a case is known not to be exact."""
        keys = (f"{case}.{'stream' if stream else 'json'}", case, f"*.{'stream' if stream else 'json'}", "*")
        return next((self.known[key] for key in keys if key in self.known), None)


@dataclass(frozen=True, slots=True)
class Framework:
    """``packages`` are pinned requirements, the first of which is the framework's own; ``npm``: they are JavaScript's.

    ``absent`` says why a framework is not run, where it cannot be. ``names`` are programs of several agents, by how
    page names what they are of; each says in `CALLS` under which names its calls have to be recorded. ``program`` is
    empty where these are all.
    """

    name: str
    packages: tuple[str, ...]
    program: str
    setups: tuple[Setup, ...]
    npm: bool = False
    absent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@" if self.npm else "==")[2]


OPENAI = "openai==3.57.0"

FRAMEWORKS = (
    Framework(
        "openai",
        (OPENAI,),
        "use_openai.py",
        (
            Setup("chat", "chat completions", "nothing"),
            Setup("responses", "responses", "nothing"),
            Setup("responses-previous", "responses, `previous_response_id`", "nothing"),
        ),
    ),
    Framework("anthropic", ("anthropic==2.14.0",), "use_anthropic.py", (Setup("messages", "messages", "nothing"),)),
    Framework(
        "google-genai", ("google-genai==2.34.0",), "use_google_genai.py", (Setup("gemini", "gemini", "nothing"),)
    ),
    Framework(
        "openai-agents",
        ("openai-agents==0.24.0", OPENAI),
        "use_openai_agents.py",
        (
            Setup("responses", "responses", "nothing"),
            Setup("chat", "chat completions", '`set_default_openai_api("chat_completions")`'),
        ),
        environment={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
        names={"agents": "names_openai_agents.py"},
    ),
    Framework(
        "langchain",
        (
            "langchain==1.5.2",
            "langgraph==1.2.24",
            "langchain-openai==1.7.4",
            "langchain-anthropic==1.7.10",
            OPENAI,
            "anthropic==2.14.0",
        ),
        "use_langchain.py",
        (
            Setup("chat", "chat completions", "nothing"),
            Setup("responses", "responses", "`ChatOpenAI(..., use_responses_api=True)`"),
            Setup("messages", "messages", "nothing"),
        ),
    ),
    Framework(
        "langgraph",
        ("langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4", OPENAI),
        "use_langgraph.py",
        (Setup("chat", "chat completions", "nothing"),),
        names={
            "nodes": "names_langgraph.py",
            "nodes, by `get_langchain_handler()`, over a client without httpx": "names_langchain_handler.py",
        },
    ),
    Framework(
        "agent-framework",
        ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0", OPENAI),
        "use_agent_framework.py",
        (
            Setup("responses", "responses", "nothing"),
            Setup("chat", "chat completions", "`OpenAIChatCompletionClient(model=...)`"),
        ),
        names={"executors of a workflow, and an agent outside one": "names_agent_framework.py"},
    ),
    Framework(
        "agent-framework-2025",
        ("agent-framework-core==1.0.0b251016", "mcp[ws]==1.30.0", "openai==1.109.1"),
        "",
        (),
        names={
            "executors of a workflow, and an agent outside one, once `init()` has its spans written": "names_agent_framework_2025.py"
        },
    ),
    Framework(
        "agentscope1",
        ("agentscope==1.0.21", "openai==2.54.0", "mcp==1.30.0", "greenlet==3.5.6"),
        "use_agentscope1.py",
        (Setup("chat", "chat completions", "nothing", limits="needs `greenlet`, which it does not declare"),),
        names={
            "agents": "names_agentscope1.py",
            "agents in spans of OpenTelemetry's SDK, set up by the program": "names_opentelemetry_sdk.py",
        },
    ),
    Framework(
        "agentscope2",
        ("agentscope==2.0.11", OPENAI),
        "use_agentscope2.py",
        (Setup("chat", "chat completions", "nothing"), Setup("responses", "responses", "nothing")),
        names={"agents": "names_agentscope2.py"},
    ),
    Framework(
        "autogen",
        ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5", OPENAI),
        "use_autogen.py",
        (Setup("chat", "chat completions", "`OpenAIChatCompletionClient(..., model_info=...)`"),),
        names={
            "agents of a team, and one on its own": "names_autogen.py",
            "recipients of messages": "names_autogen_core.py",
        },
    ),
    Framework(
        "ag2",
        ("ag2[openai]==1.2.1", OPENAI),
        "use_ag2.py",
        (Setup("chat", "chat completions", "nothing"), Setup("responses", "responses", "nothing")),
    ),
    Framework(
        "ag2-0.14", ("ag2[openai]==0.14.0",), "use_ag2_classic.py", (Setup("chat", "chat completions", "nothing"),)
    ),
    Framework(
        "pydantic-ai",
        ("pydantic-ai-slim[openai,anthropic,google]==2.62.0", OPENAI, "anthropic==2.14.0"),
        "use_pydantic_ai.py",
        (
            Setup("responses", "responses", "nothing"),
            Setup("chat", "chat completions", '`Agent("openai-chat:NAME")`'),
            Setup("messages", "messages", "nothing"),
            Setup("gemini", "gemini", "nothing"),
        ),
    ),
    Framework(
        "smolagents",
        ("smolagents[openai]==1.26.0", OPENAI),
        "use_smolagents.py",
        (
            Setup(
                "chat",
                "chat completions",
                "nothing",
                limits="asks for a call in every turn (`tool_choice: required`), so its engine has to keep samples to "
                "a grammar",
                known={
                    "*": "sends its own turns back as other text, without ids: each turn is a branch (`edited`), "
                    "trained as such"
                },
            ),
        ),
    ),
    Framework(
        "google-adk",
        ("google-adk==2.13.0", "google-genai==2.34.0", "litellm==1.110.2", OPENAI),
        "use_google_adk.py",
        (Setup("gemini", "gemini", "nothing"), Setup("chat", "chat completions", '`LiteLlm("openai/NAME")`')),
    ),
    Framework(
        "strands",
        ("strands-agents[openai]==1.62.0", "openai==2.54.0"),
        "use_strands.py",
        (Setup("chat", "chat completions", "nothing", STREAMS), Setup("responses", "responses", "nothing", STREAMS)),
    ),
    Framework(
        "litellm",
        ("litellm==1.110.2", OPENAI),
        "use_litellm.py",
        (
            Setup("chat", "chat completions", '`model="openai/NAME"`'),
            Setup("messages", "messages", '`model="anthropic/NAME"`'),
        ),
    ),
    Framework(
        "claude-agent-sdk",
        ("claude-agent-sdk==0.2.189",),
        "use_claude_agent_sdk.py",
        (
            Setup(
                "messages",
                "messages",
                "nothing (a run sets `CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1`, or the model would also name the "
                "session)",
                STREAMS,
            ),
        ),
        environment={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    Framework(
        "llama-index",
        ("llama-index==0.14.25", "llama-index-llms-openai==0.7.10", "openai==2.54.0"),
        "use_llama_index.py",
        (
            Setup(
                "chat",
                "chat completions",
                "nothing (it reads `OPENAI_API_BASE`)",
                limits="knows only OpenAI's model names",
            ),
            Setup(
                "responses",
                "responses",
                "nothing (it reads `OPENAI_API_BASE`)",
                limits="knows only OpenAI's model names",
            ),
        ),
    ),
    Framework(
        "crewai",
        ("crewai==1.15.30", "openai==2.54.0"),
        "use_crewai.py",
        (
            Setup(
                "chat",
                "chat completions",
                "nothing",
                known=dict.fromkeys(
                    ("parallel", "awkward", "unicode", "reasoning"),
                    "drops the text beside a call: the turn after it is a branch (`edited`), and both are trained",
                ),
            ),
        ),
        environment={
            "CREWAI_DISABLE_TELEMETRY": "true",
            "OTEL_SDK_DISABLED": "true",
            "CREWAI_TRACING_ENABLED": "false",
        },
    ),
    Framework(
        "@openai/agents",
        ("@openai/agents@0.20.0", "openai@7.59.0", "zod@4"),
        "use_openai_agents.mjs",
        (
            Setup("responses", "responses", "nothing"),
            Setup("chat", "chat completions", '`setOpenAIAPI("chat_completions")`'),
        ),
        npm=True,
        environment={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    ),
    Framework(
        "ai",
        ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92", "zod@4"),
        "use_ai.mjs",
        (
            Setup("responses", "responses", "nothing"),
            Setup("chat", "chat completions", "`openai.chat(NAME)`"),
            Setup(
                "compatible",
                "chat completions",
                "`createOpenAICompatible({baseURL: process.env.OPENAI_BASE_URL, ...})`",
            ),
        ),
        npm=True,
    ),
)
