"""``python -m agentlightning.verl FILE.py:agent key=value ...``: trains with verl's keys, read as
``VERL(config)`` reads them.

The agent comes first, the tasks with ``data.train_files``. Exit codes are those of ``agl train``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agentlightning.cli.streams import let_go, make_safe, say
from agentlightning.cli.training import INTERRUPTED
from agentlightning.compat.hydra_words import settings_of
from agentlightning.compat.verl import VERL
from agentlightning.errors import AgentLightningError, ConfigError
from agentlightning.nouns import RunStatus

COMMAND = "python -m agentlightning.verl"
USAGE = f"""\
{COMMAND} FILE.py:agent key=value ...

Trains the agent with verl's keys: data.train_files=train.parquet actor_rollout_ref.model.path=MODEL_DIR ...
A value is null, true, a number, a text, 'a quoted one', [a,list] or {{a:table}}. docs/verl.md has the keys.
"""


def train(words: Sequence[str]) -> int:
    """Raises what `Trainer.fit` does, and ConfigError for words that are no settings."""
    from agentlightning.run.trainer import Trainer

    agent, settings = _parted(words)
    trainer = Trainer(algorithm=VERL(settings_of(settings)))
    result = trainer.fit(agent)
    interrupted = result.status is RunStatus.STOPPED and result.stopped_by == "interrupted"
    return INTERRUPTED if interrupted else 0


def _parted(words: Sequence[str]) -> tuple[str, list[str]]:
    agents = [word for word in words if "=" not in word and word[:1] not in "-~+"]
    if len(agents) != 1:
        said = (
            f"{' and '.join(agents)}: one agent is trained"
            if agents
            else ("no agent: none joins from elsewhere in this version, so leave out what joins by an address")
        )
        raise ConfigError(f"{said}; write {COMMAND} FILE.py:agent key=value ...")
    return agents[0], [word for word in words if word != agents[0]]


def main() -> None:
    from agentlightning.engines.local.thread_count import bound_spinning

    make_safe()
    bound_spinning()
    words = sys.argv[1:]
    try:
        if not words or {"-h", "--help"} & set(words):
            say(USAGE, end="")
            sys.exit(0 if words else 2)
        sys.exit(train(words))
    except AgentLightningError as error:
        say("\n".join(f"{COMMAND}: {line}" for line in str(error).splitlines()), err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        say(f"{COMMAND}: interrupted", err=True)
        sys.exit(INTERRUPTED)
    finally:
        let_go()


if __name__ == "__main__":
    main()
