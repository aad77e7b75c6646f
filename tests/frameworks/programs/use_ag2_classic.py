"""ag2 before 1.0: a `ConversableAgent` that calls tools and one that runs them."""

from __future__ import annotations

import os

from autogen import ConversableAgent, LLMConfig, register_function
from case import SYSTEM, Case, calculator, note, run


def chat(case: Case) -> str:
    config = LLMConfig(
        {
            "model": case.model,
            "api_type": "openai",
            "api_key": os.environ["OPENAI_API_KEY"],
            "stream": case.stream,
            "cache_seed": None,
        }
    )
    agent = ConversableAgent("assistant", system_message=SYSTEM, llm_config=config, human_input_mode="NEVER")
    user = ConversableAgent(
        "user", llm_config=False, human_input_mode="NEVER", is_termination_msg=lambda said: not said.get("tool_calls")
    )
    for tool, what in ((calculator, "Calculates an arithmetic expression."), (note, "Takes a note.")):
        register_function(tool, caller=agent, executor=user, description=what)
    return user.initiate_chat(agent, message=case.question, max_turns=5, silent=True).chat_history[-1]["content"]


if __name__ == "__main__":
    run({"chat": chat})
