"""The errors a user can meet. Each message is one line: what happened, with which value, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path


class AgentLightningError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(AgentLightningError):
    """A setting, an argument or a combination of them that cannot work. Raised before anything starts."""


class TaskError(ConfigError):
    """A task file or data set that cannot be used."""


class ModelError(ConfigError):
    """A model folder that cannot be loaded or does not hold what training needs."""


class MissingExtra(ConfigError):
    """An optional library is not installed. The message is the command that installs it."""


class ContextLengthError(AgentLightningError):
    """A prompt does not fit the model's context. ``prompt_tokens`` and ``context_length`` are token counts,
    ``aside`` is what else there is to say."""

    def __init__(self, prompt_tokens: int, context_length: int, aside: str = "") -> None:
        told = f"the prompt has {prompt_tokens} tokens and the model's context holds {context_length}"
        super().__init__(f"{told}; {aside}" if aside else told)
        self.aside = aside
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class CompactionError(AgentLightningError):
    """A history could not be shortened. ``said`` goes on from the name of the function: "returned ...", "'s process
    ..."."""

    def __init__(self, said: str) -> None:
        super().__init__(f"compact{said}" if said.startswith("'") else f"compact {said}")


class TemplateError(AgentLightningError):
    """A chat template refused a conversation (roles that must alternate, say). The message carries the template's own
    words."""


class EngineError(AgentLightningError):
    """The engine could not sample."""


class GrammarError(AgentLightningError):
    """A grammar, or a JSON schema in it, that cannot be kept to. The message names what cannot."""


class StoreError(AgentLightningError):
    """The record could not be written or read (disk full, folder not writable, database damaged)."""


class RewardRefused(StoreError):
    """A reward names an attempt, a call, an agent or a tool call that there is not."""


class StreamError(AgentLightningError):
    """What a command has to say cannot be written (disk full)."""


class LeaseLost(StoreError):
    """An attempt was reported by a runner that no longer holds its lease. The report is refused."""


class RunFailed(AgentLightningError):
    """A run cannot go on. The message names the commonest cause in words."""


class RewardError(AgentLightningError):
    """A reward that is not a finite number, or one that was emitted where no attempt can take it."""


def why_no_folder(folder: Path, error: OSError) -> str:
    """Why a folder could not be made, or nothing written in it: the file that stands in its way, else what the system
    says."""
    # A folder on the way may be one that this user must not look into: os.path then says no, where Path raises.
    file = next((path for path in (folder, *folder.parents) if os.path.exists(path) and not os.path.isdir(path)), None)
    return f"{file} is a file, not a folder" if file is not None else error.strerror or str(error)


def install(extra: str) -> str:
    """The command that adds an extra to this installation.

    By its name only where pip finds the package installed, and so takes what the installed one asks for: another
    package of the same name is published up to 0.3.0.
    """
    checkout = Path(__file__).resolve().parent.parent
    return f'pip install "{checkout if (checkout / "pyproject.toml").is_file() else "agentlightning"}[{extra}]"'
