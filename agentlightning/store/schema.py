"""The tables, once, as SQLAlchemy Core definitions. A new database is made from them; an older one reaches them by
migrations/.

``REVISION`` is the Alembic revision these tables are at: a change here comes with a new file in migrations/versions and
a new value, and a test holds the two to the same schema. Columns carry the names of the records in nouns.py.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

REVISION = "0003"

metadata = MetaData()


def _failure() -> list[Column[str]]:
    """The three columns of a types.Failure; ``failure_reason`` is NULL where there is none."""
    return [Column("failure_reason", Text), Column("failure_message", Text), Column("failure_traceback", Text)]


runs = Table(
    "runs",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("error", Text),
)

resources = Table(
    "resources",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("resources", Text, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("step", Integer, primary_key=True),
    # The policies' versions after the step, by name, as JSON.
    Column("versions", Text, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("ledger", Text, nullable=False),
    Column("checkpoint", Text),
    Column("ended_at", Float, nullable=False),
)

# The training groups of each step: the rule that a group is in one step alone is the database's own.
step_groups = Table(
    "step_groups",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("group", Integer, primary_key=True),
    Column("step", Integer, nullable=False),
    ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
    Index("step_groups_by_step", "run_id", "step"),
)

intents = Table(
    "intents",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    Column("mode", Text, primary_key=True),
    Column("step", Integer, primary_key=True),
    # A JSON list of numbers, and versions by policy as JSON.
    Column("groups", Text, nullable=False),
    Column("versions", Text, nullable=False),
)

credit = Table(
    "credit",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("attempt_id", Text, ForeignKey("attempts.id"), primary_key=True, index=True),
    # The stored form of records/credit.py.
    Column("blob", LargeBinary, nullable=False),
    ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("task", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("group", Integer, nullable=False),
    Column("index", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("resources_version", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt_id", Text),
    Column("reward", Float),
    *_failure(),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Index("rollouts_by_status", "run_id", "status", "seq"),
    UniqueConstraint("run_id", "group", "mode", "index"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("rollout_id", Text, ForeignKey("rollouts.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("runner_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("lease_until", Float, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    # What ended it (finish, retry, expire, requeue, cancel): a second finish is a repeat only where the first end was
    # one.
    Column("ended_by", Text),
    *_failure(),
    Column("output", Text),
    # A JSON list of agents' names; NULL where the attempt marked none.
    Column("marked", Text),
    Column("score_until", Float),
    UniqueConstraint("rollout_id", "number"),
)

RUNNING = attempts.c.status == text("'running'")
SCORING = attempts.c.status == text("'scoring'")
OPEN = RUNNING | SCORING
"""The conditions of the indexes below, spelt as they are: a bound value would keep a database from using them."""

# The rule that a rollout never has two open attempts is the database's own, whatever a program does.
Index("attempts_open", attempts.c.rollout_id, unique=True, sqlite_where=OPEN, postgresql_where=OPEN)
Index("attempts_by_lease", attempts.c.lease_until, sqlite_where=RUNNING, postgresql_where=RUNNING)
Index("attempts_by_scoring", attempts.c.score_until, sqlite_where=SCORING, postgresql_where=SCORING)

calls = Table(
    "calls",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("attempt_id", Text, ForeignKey("attempts.id"), nullable=False),
    Column("index", Integer, nullable=False),
    Column("wire", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("branch", Text, nullable=False),
    Column("prompt_node", Integer),
    Column("samples", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("used", Text),
    Column("prompt_tokens", Integer, nullable=False),
    Column("reused_tokens", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("agent", Text),
    Column("error", Text),
    Column("received_at", Float, nullable=False),
    Column("first_token_s", Float),
    Column("total_s", Float),
    # A types.External as JSON; NULL for a call to a policy.
    Column("external", Text),
    # The agent's name where it was set after the call: it then counts instead of ``agent``.
    Column("agent_set", Text),
    UniqueConstraint("attempt_id", "index"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("attempt_id", Text, ForeignKey("attempts.id"), primary_key=True),
    Column("id", Integer, primary_key=True),
    Column("parent", Integer),
    Column("sampled", Boolean, nullable=False),
    Column("call_index", Integer, nullable=False),
    Column("version", Integer),
    # Little-endian int32 or float32, one entry per token; kept_ids and kept_offsets are ragged as in types.Kept.
    Column("token_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary),
    Column("log_kept", LargeBinary),
    Column("kept_ids", LargeBinary),
    Column("kept_offsets", LargeBinary),
    ForeignKeyConstraint(["attempt_id", "parent"], ["nodes.attempt_id", "nodes.id"]),
)

rewards = Table(
    "rewards",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("rollout_id", Text, ForeignKey("rollouts.id"), nullable=False, index=True),
    Column("attempt_id", Text, ForeignKey("attempts.id"), nullable=False),
    Column("value", Float, nullable=False),
    Column("name", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("call_id", Text),
    Column("agent", Text),
    Column("reason", Text),
    Column("created_at", Float, nullable=False),
    Column("tool_call_id", Text),
    Column("late", Boolean, nullable=False, server_default=false()),
    # A JSON object; NULL where nothing was said besides.
    Column("attributes", Text),
)

spans = Table(
    "spans",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("attempt_id", Text, ForeignKey("attempts.id"), nullable=False),
    Column("span_id", Text, nullable=False),
    Column("parent_id", Text),
    Column("name", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    UniqueConstraint("attempt_id", "span_id"),
)
