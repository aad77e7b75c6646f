"""The commands of ``agl``: read arguments, call one thing, show what came of it. What they do lives elsewhere.

Exit codes: 0 done, 1 a defect (with its traceback) or an agent that cannot be trained (``dev``), 2 an error that its
one line explains, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from agentlightning import __version__
from agentlightning.cli.usage import UsageError, no_command, usage_line
from agentlightning.errors import AgentLightningError
from agentlightning.logs import configure_logger

INTERRUPTED = 130


class Commands(TyperGroup):
    """Turns errors into one line and an exit code, for every command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        plain = _optional_value([arg for arg in args if arg != "--debug"], "--resume", "latest")
        ctx.obj = {"debug": "--debug" in args, "arguments": tuple(plain)}
        if ctx.obj["debug"]:
            configure_logger("DEBUG")
        with _one_line():
            return super().parse_args(ctx, list(plain))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise no_command(args[0], self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _one_line():
                return super().invoke(ctx)
        except AgentLightningError as error:
            if ctx.obj["debug"]:
                raise
            _complain(f"agl: {error}")
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            _complain("agl: interrupted")
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _one_line() -> Generator[None]:
    """What the command line lacks or has too much, in one line."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _complain(f"agl: {usage_line(error)}")
        raise typer.Exit(2) from error


def _complain(text: str) -> None:
    """One line, or one for each thing that is wrong, on stderr."""
    from agentlightning.cli.streams import say

    say(text, err=True)


def _optional_value(args: list[str], option: str, value: str) -> list[str]:
    """Gives ``option`` its value where none follows it: at the end, before another option, or before
    ``FILE.py:agent``."""
    out: list[str] = []
    for i, arg in enumerate(args):
        follower = args[i + 1] if i + 1 < len(args) else "-"
        out.append(f"{option}={value}" if arg == option and (follower.startswith("-") or ".py:" in follower) else arg)
    return out


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train any LLM agent while it keeps running as its author wrote it.",
)

AGENT = Annotated[str, typer.Argument(metavar="FILE.py:AGENT", help="The agent, or pkg.mod:agent.", show_default=False)]
MODEL = Annotated[
    str | None,
    typer.Option(
        help="A Hugging Face model folder or hub id, a name of `agl model`, a run (its best or last checkpoint), or "
        "`latest`.",
        show_default=False,
    ),
]
CONFIG = Annotated[Path | None, typer.Option(help="A TOML file of settings.", show_default=False)]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One setting, e.g. learner.lr=1e-5. Repeatable.", show_default=False
    ),
]
NAME = Annotated[str | None, typer.Option(help="What the run is called.", show_default=False)]
OUTPUT = Annotated[Path | None, typer.Option(help="Where runs are kept (default: runs).", show_default=False)]
RUNNERS = Annotated[int | None, typer.Option(help="Attempts that run at once.", show_default=False)]
ISOLATION = Annotated[str | None, typer.Option(help="process or thread.", show_default=False)]
SEED = Annotated[int | None, typer.Option(help="Fixes everything random.", show_default=False)]
GRADER = Annotated[
    str | None, typer.Option(metavar="FILE.py:FN", help="grader(task, output, attempt) -> number.", show_default=False)
]
COMPACT = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FN", help="compact(messages, tools, limit, count) -> shorter messages.", show_default=False
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Write JSON to stdout; what is for people goes to stderr.")]


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of every error. Anywhere on the line.")
    ] = False,
) -> None:
    """Options of ``agl`` itself. Both act before this is called: see Commands."""
    del version, debug


@app.command()
def train(
    ctx: typer.Context,
    agent: AGENT,
    model: MODEL = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Training tasks: JSON lines, JSON, CSV, TSV or Parquet.", show_default=False)
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option(help="Tasks that are scored before and after: a file as for --tasks.", show_default=False),
    ] = None,
    config: CONFIG = None,
    set_: SET = None,
    name: NAME = None,
    output_dir: OUTPUT = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps (default: one pass over the tasks).", show_default=False)
    ] = None,
    n_runners: RUNNERS = None,
    group_size: Annotated[
        int | None, typer.Option(help="Rollouts per task that are compared.", show_default=False)
    ] = None,
    isolation: ISOLATION = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN]", help="Go on with the latest unfinished run of this name, or with RUN.", show_default=False
        ),
    ] = None,
    max_time: Annotated[
        float | None, typer.Option(help="Seconds after which the run saves and ends.", show_default=False)
    ] = None,
    seed: SEED = None,
    grader: GRADER = None,
    compact: COMPACT = None,
    json: JSON = False,
) -> None:
    """Train an agent. Ctrl-C once saves a checkpoint and ends with the summary; twice stops at once."""
    from agentlightning.cli import training
    from agentlightning.cli.settings import settings

    resolved = settings(
        config,
        set_,
        model=model,
        name=name,
        output_dir=output_dir,
        steps=steps,
        n_runners=n_runners,
        group_size=group_size,
        isolation=isolation,
        max_time=max_time,
        seed=seed,
    )
    raise typer.Exit(
        training.train(
            resolved,
            agent,
            tasks=tasks,
            val=val,
            grader=grader,
            compact=compact,
            resume=resume,
            json=json,
            arguments=ctx.obj["arguments"],
        )
    )


@app.command("eval")
def evaluate(
    agent: AGENT,
    model: MODEL = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Tasks: JSON lines, JSON, CSV, TSV or Parquet.", show_default=False)
    ] = None,
    config: CONFIG = None,
    set_: SET = None,
    name: NAME = None,
    output_dir: OUTPUT = None,
    n_runners: RUNNERS = None,
    isolation: ISOLATION = None,
    seed: SEED = None,
    grader: GRADER = None,
    compact: COMPACT = None,
    json: JSON = False,
) -> None:
    """Score an agent, without training. Sampling is set in [evaluation]: greedy by default."""
    from agentlightning.cli import training
    from agentlightning.cli.settings import settings

    resolved = settings(
        config, set_, model=model, name=name, output_dir=output_dir, n_runners=n_runners, isolation=isolation, seed=seed
    )
    raise typer.Exit(training.evaluate(resolved, agent, tasks=tasks, grader=grader, compact=compact, json=json))


@app.command()
def dev(
    agent: AGENT,
    model: MODEL = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Tasks: JSON lines, JSON, CSV, TSV or Parquet.", show_default=False)
    ] = None,
    n: Annotated[
        int, typer.Option("-n", min=1, help="Rollouts to run; the first one's task is then run once more.")
    ] = 3,
    config: CONFIG = None,
    set_: SET = None,
    name: NAME = None,
    output_dir: OUTPUT = None,
    isolation: ISOLATION = None,
    seed: SEED = None,
    grader: GRADER = None,
    compact: COMPACT = None,
    json: JSON = False,
) -> None:
    """Check an agent with a few rollouts. Says what was called, recorded and scored, and what would keep it from being
    trained."""
    from agentlightning.cli import training
    from agentlightning.cli.settings import settings

    resolved = settings(config, set_, model=model, name=name, output_dir=output_dir, isolation=isolation, seed=seed)
    raise typer.Exit(training.dev(resolved, agent, tasks=tasks, n=n, grader=grader, compact=compact, json=json))


@app.command()
def runs(output_dir: OUTPUT = None, config: CONFIG = None, json: JSON = False) -> None:
    """List runs, newest first."""
    from agentlightning.cli import reading
    from agentlightning.cli.settings import settings

    reading.runs(settings(config, None, output_dir=output_dir).config, json=json)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's id, name or folder, or `latest`.", show_default=False)],
    rollout: Annotated[
        str | None, typer.Argument(help="A rollout's id, as the list of a step shows it.", show_default=False)
    ] = None,
    step: Annotated[int | None, typer.Option(help="List this step's rollouts.", show_default=False)] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long given texts whole.")] = False,
    output_dir: OUTPUT = None,
    config: CONFIG = None,
    json: JSON = False,
) -> None:
    """Show a run, or one of its rollouts. A run: steps, rollouts by outcome, ledger. A rollout: its trace tree, sampled
    tokens apart from given ones."""
    from agentlightning.cli import reading
    from agentlightning.cli.settings import settings

    reading.show(settings(config, None, output_dir=output_dir).config, run, rollout, step=step, full=full, json=json)


@app.command()
def trace(
    run: Annotated[str, typer.Argument(help="A run's id, name or folder.")] = "latest",
    rollout: Annotated[
        str | None,
        typer.Argument(
            help="A rollout's id, as the list of a step shows it (default: the one that ended last).",
            show_default=False,
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Which attempt (default: the last, the one that counts).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg|FILE.png", help="Draw the tree into a file instead.", show_default=False),
    ] = None,
    output_dir: OUTPUT = None,
    config: CONFIG = None,
    json: JSON = False,
) -> None:
    """Show the tree of a recorded attempt, a line for each node: agent, tokens sampled or given, why it branched,
    weights and rewards. Or draw it."""
    from agentlightning.cli import reading
    from agentlightning.cli.settings import settings

    reading.trace(
        settings(config, None, output_dir=output_dir).config, run, rollout, attempt=attempt, out=out, json=json
    )


@app.command()
def chat(
    model: Annotated[
        str,
        typer.Option(
            help="A Hugging Face model folder or hub id, a checkpoint, a run, or `latest`.", show_default=False
        ),
    ],
    system: Annotated[str | None, typer.Option(help="A system message.", show_default=False)] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="A ceiling on each reply.")] = 512,
    seed: SEED = None,
    output_dir: OUTPUT = None,
    config: CONFIG = None,
    set_: SET = None,
) -> None:
    """Talk to a model. /reset forgets the conversation, /quit (or Ctrl-D) ends it."""
    from agentlightning.cli import chat as chatting
    from agentlightning.cli.settings import choose, settings

    resolved, said = choose(settings(config, set_, model=model, output_dir=output_dir))
    if said:
        _complain(said)
    chatting.run(resolved.config, system=system, temperature=temperature, max_tokens=max_tokens, seed=seed)


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face model folder or hub id, a checkpoint, a run, or `latest`.", show_default=False
        ),
    ],
    host: Annotated[
        str | None, typer.Option(help="The address to listen on (default: 127.0.0.1).", show_default=False)
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    key: Annotated[
        str | None,
        typer.Option(
            help="What clients have to send (default: a fresh one). `none` lets everybody on this machine in.",
            show_default=False,
        ),
    ] = None,
    output_dir: OUTPUT = None,
    config: CONFIG = None,
    set_: SET = None,
) -> None:
    """Serve a model to clients of the OpenAI, Anthropic and Gemini APIs. Ctrl-C ends it."""
    from agentlightning.cli import serving
    from agentlightning.cli.settings import choose, settings

    resolved, said = choose(settings(config, set_, model=model, host=host, port=port, output_dir=output_dir))
    serving.serve(resolved, said, key=key)


@app.command()
def model(
    name: Annotated[
        str | None, typer.Argument(help="The model to make; without it they are listed.", show_default=False)
    ] = None,
) -> None:
    """Make a small model to begin with, once, and print its folder. Or list them."""
    from agentlightning.cli import model as starting

    starting.show(name)


@app.command("config")
def show_config(
    config: CONFIG = None,
    set_: SET = None,
    reference: Annotated[bool, typer.Option("--reference", help="Print the page of all settings (Markdown).")] = False,
    json: JSON = False,
) -> None:
    """Print the settings, and where each comes from."""
    from agentlightning.cli import reading
    from agentlightning.cli.settings import settings

    if reference:
        from agentlightning.algorithms import ALGORITHMS
        from agentlightning.cli.output import write_text
        from agentlightning.settings.reference import reference as page

        write_text(page(ALGORITHMS))
        return
    reading.settings(settings(config, set_), json=json)
