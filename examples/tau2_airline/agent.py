"""tau2's airline desk as an agent: an assistant with the airline's tools talks to a user, and tau2 scores what came of
it. The package brings the conversation, the tools, the database and the scoring; here stands who plays which part.

The assistant is the model ``main_llm``, which is trained. The user is the model ``user_llm`` where there is one, which
is not, and else a script.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or LiteLLM fetches prices when it is imported

from loguru import logger
from tau2.agent.llm_agent import LLMAgent, LLMAgentState
from tau2.data_model.message import AssistantMessage, Message, ToolCall, UserMessage
from tau2.data_model.tasks import Action, Task
from tau2.domains.airline.environment import get_environment
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.orchestrator.orchestrator import Orchestrator
from tau2.user.base import STOP, BaseUser, UserState
from tau2.user.user_simulator import UserSimulator

from agentlightning import LLM, LitAgent

logger.remove()  # it reports every message of every conversation

LOOKUPS = ("get_user_details", "get_reservation_details")
SHORT_POLICY = "You work at an airline's desk. Look up the user by the user id they give, with get_user_details."
EXAMPLES = (
    ("Hello, which seat do I have? My user id is jane_doe_1234.", "jane_doe_1234"),
    ("I am Omar Lopez. My user id is omar_lopez_5678. I want to change my flight.", "omar_lopez_5678"),
    ("I need to cancel a trip. My name is Mei Brown. My user id is mei_brown_3456.", "mei_brown_3456"),
)
"""What the reduced form shows of earlier conversations, so that a model of 135M parameters sometimes gets it right."""


class AirlineAgent(LitAgent[dict[str, Any]]):
    """``full``: tau2's own policy, its fourteen tools and its scoring, 0 or 1. Else the reduced form: two tools, a
    policy of one line, and 1 where the assistant looked up the user who is speaking, by the id that they gave."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__()
        self.full = full

    def rollout(self, task: dict[str, Any], resources: dict[str, Any], rollout: Any) -> float:
        case = Task.model_validate(json.loads(task["task"]))
        environment = get_environment() if self.full else get_environment(_database())
        tools = environment.get_tools()
        assistant = (
            Assistant(tools=tools, domain_policy=environment.get_policy(), **_model(resources["main_llm"]))
            if self.full
            else ShortAssistant(
                tools=[tool for tool in tools if tool.name in LOOKUPS],
                domain_policy=SHORT_POLICY,
                **_model(resources["main_llm"], max_tokens=48),
            )
        )
        user_llm = resources.get("user_llm")
        user = UserSimulator(instructions=case.user_scenario, **_model(user_llm)) if user_llm else ScriptedUser(case)
        conversation = Orchestrator(
            "airline",
            assistant,
            user,
            environment,
            case,
            max_steps=100 if self.full else 4,
            validate_communication=True,
        ).run()
        if self.full:
            return evaluate_simulation(conversation, case, EvaluationType.ALL, solo_mode=False, domain="airline").reward
        duty = Action(action_id="lookup", name="get_user_details", arguments={"user_id": user_id(case)})
        return ActionEvaluator.evaluate_actions(conversation.messages, [duty])[0].action_reward


class Assistant(LLMAgent):
    """tau2's, but that it may say nothing: what a model does is worth little then, and no fault of the program."""

    def generate_next_message(self, message: Any, state: LLMAgentState) -> tuple[AssistantMessage, LLMAgentState]:
        said, state = super().generate_next_message(message, state)
        if not said.has_text_content() and not said.is_tool_call():
            said.content = "(says nothing)"
        return said, state


class ShortAssistant(Assistant):
    """The assistant of the reduced form: short instructions, and an example before the conversation."""

    @property
    def system_prompt(self) -> str:
        return self.domain_policy

    def get_init_state(self, message_history: list[Message] | None = None) -> LLMAgentState:
        state = super().get_init_state(None)  # without the greeting: templates want the user to open
        for place, (said, user) in enumerate(EXAMPLES):
            call = ToolCall(id=f"example{place}", name="get_user_details", arguments={"user_id": user})
            state.messages += [
                UserMessage(role="user", content=said),
                AssistantMessage(role="assistant", tool_calls=[call]),
            ]
        return state


class ScriptedUser(BaseUser):
    """Says who they are and what they want, answers once more, and goes."""

    def __init__(self, case: Task) -> None:
        super().__init__()
        told = case.user_scenario.instructions
        wish = f"{told.reason_for_call} {told.known_info}"
        for theirs, mine in (("You are", "I am"), ("Your", "My"), ("your", "my"), ("You", "I"), ("you", "I")):
            wish = re.sub(rf"\b{theirs}\b", mine, wish)
        self.lines = [" ".join(wish.split()), "Please do what you can.", STOP]

    def get_init_state(self, message_history: list[Message] | None = None) -> UserState:
        return UserState(system_messages=[], messages=list(message_history or []))

    def generate_next_message(self, message: Any, state: UserState) -> tuple[UserMessage, UserState]:
        said = sum(isinstance(each, UserMessage) for each in state.messages)
        line = UserMessage(role="user", content=self.lines[min(said, len(self.lines) - 1)])
        state.messages += [message, line]
        return line, state

    @classmethod
    def is_stop(cls, message: UserMessage) -> bool:
        return STOP in (message.content or "")


def user_id(case: Task) -> str:
    """The id that the user of a task has, ``emma_kim_9957``."""
    return re.findall(r"\b[a-z]+_[a-z]+_\d{4}\b", case.user_scenario.instructions.known_info or "")[0]


def _model(llm: LLM, **sampling: Any) -> dict[str, Any]:
    """An endpoint as tau2 takes it: it calls models through LiteLLM."""
    return {"llm": f"openai/{llm.model}", "llm_args": {"api_base": llm.endpoint, "api_key": "none", **sampling}}


@functools.cache
def _database() -> Any:
    """The airline's database, seven megabytes, read once: in the reduced form nothing is written to it."""
    return get_environment().tools.db
