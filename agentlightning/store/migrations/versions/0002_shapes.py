"""Groups have numbers, steps list their groups, policies have versions by name; credit is kept, attempts wait for their
graders, agents are named after the call, rewards may be late or name a tool call.

A rollout's step is where its group was: in ``step_groups`` for training, in an intent of mode ``val`` for a validation.
Ids stay as they were.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ROLLOUTS = (
    'seq, id, run_id, task, mode, "group", "index", seed, resources_version, status, attempt_id, reward, '
    "failure_reason, failure_message, failure_traceback, created_at, started_at, ended_at"
)

_NUMBERED = """
CREATE TEMP TABLE numbered AS
SELECT run_id, mode, step, name,
       row_number() OVER (PARTITION BY run_id, mode ORDER BY step, first) - 1 AS number
FROM (SELECT run_id, mode, step, "group" AS name, min(seq) AS first
      FROM rollouts GROUP BY run_id, mode, step, "group")
"""
"""The groups of each run and mode, numbered in the order of their steps and, within a step, of their first rollouts."""


def upgrade() -> None:
    """Rebuilds ``rollouts`` and ``steps``. A migration only goes forward, so there is no downgrade."""
    op.execute(_NUMBERED)
    _rebuild_rollouts()
    _rebuild_steps()
    op.create_table(
        "step_groups",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
        sa.PrimaryKeyConstraint("run_id", "group"),
    )
    op.create_index("step_groups_by_step", "step_groups", ["run_id", "step"])
    op.execute(
        'INSERT INTO step_groups (run_id, "group", step) SELECT steps.run_id, numbered.number, steps.step FROM steps '
        "JOIN numbered ON numbered.run_id = steps.run_id AND numbered.step = steps.step WHERE numbered.mode = 'train'"
    )
    op.create_table(
        "intents",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("run_id", "mode", "step"),
    )
    op.execute(
        "INSERT INTO intents (run_id, mode, step, groups, versions) "
        "SELECT run_id, mode, step, json_group_array(number), '{}' "
        "FROM (SELECT * FROM numbered WHERE mode = 'val' ORDER BY number) GROUP BY run_id, mode, step"
    )
    op.execute("DROP TABLE numbered")
    op.create_table(
        "credit",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"]),
        sa.ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
        sa.PrimaryKeyConstraint("run_id", "step", "policy", "attempt_id"),
    )
    op.create_index("ix_credit_attempt_id", "credit", ["attempt_id"])
    op.add_column("attempts", sa.Column("score_until", sa.Float()))
    op.drop_index("attempts_running", "attempts")
    where = sa.text("status = 'running' OR status = 'scoring'")
    op.create_index("attempts_open", "attempts", ["rollout_id"], unique=True, sqlite_where=where)
    op.create_index("attempts_by_scoring", "attempts", ["score_until"], sqlite_where=sa.text("status = 'scoring'"))
    op.add_column("calls", sa.Column("agent_set", sa.Text()))
    op.add_column("rewards", sa.Column("tool_call_id", sa.Text()))
    op.add_column("rewards", sa.Column("late", sa.Boolean(), nullable=False, server_default=sa.false()))


def _rebuild_rollouts() -> None:
    op.create_table(
        "new_rollouts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("group", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("resources_version", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text()),
        sa.Column("reward", sa.Float()),
        sa.Column("failure_reason", sa.Text()),
        sa.Column("failure_message", sa.Text()),
        sa.Column("failure_traceback", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("run_id", "group", "mode", "index"),
    )
    of_group = (
        "numbered.run_id = rollouts.run_id AND numbered.mode = rollouts.mode AND numbered.step = rollouts.step "
        'AND numbered.name = rollouts."group"'
    )
    old = ", ".join("numbered.number" if name == '"group"' else f"rollouts.{name}" for name in _ROLLOUTS.split(", "))
    op.execute(
        f"INSERT INTO new_rollouts ({_ROLLOUTS}) SELECT {old} FROM rollouts JOIN numbered ON {of_group} "
        "ORDER BY rollouts.seq"
    )
    op.drop_table("rollouts")
    op.rename_table("new_rollouts", "rollouts")
    op.create_index("rollouts_by_status", "rollouts", ["run_id", "status", "seq"])


def _rebuild_steps() -> None:
    op.create_table(
        "new_steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("ended_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("run_id", "step"),
    )
    op.execute(
        "INSERT INTO new_steps (run_id, step, versions, metrics, ledger, checkpoint, ended_at) SELECT run_id, step, "
        "json_object('main', policy_version), metrics, ledger, checkpoint, ended_at FROM steps"
    )
    op.drop_table("steps")
    op.rename_table("new_steps", "steps")
