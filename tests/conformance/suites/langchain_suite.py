"""LangChain's standard integration tests of chat models, on both wires. Runs in an environment that has them, against
the endpoint of the environment's variables."""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChatCompletions(ChatModelIntegrationTests):
    use_responses_api = False

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": "gpt-4o-mini", "base_url": os.environ["AGL_BASE_URL"], "api_key": "k", "max_retries": 0,
            "stream_usage": True,
            "use_responses_api": self.use_responses_api,
        }  # fmt: skip

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def model_override_value(self) -> str:
        return "gpt-4o"


class TestResponses(TestChatCompletions):
    use_responses_api = True


class TestMessages(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "claude-haiku-4-5", "base_url": os.environ["AGL_ROOT_URL"], "api_key": "k", "max_retries": 0}

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "claude-sonnet-4-5"
