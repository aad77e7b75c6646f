"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes every table. A migration only goes forward, so there is no downgrade."""
    op.create_table(
        "runs",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "resources",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("resources", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("run_id", "version"),
    )
    op.create_table(
        "rollouts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
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
    )
    op.create_index("rollouts_by_status", "rollouts", ["run_id", "status", "seq"])
    op.create_index("rollouts_by_step", "rollouts", ["run_id", "step", "seq"])
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("rollout_ids", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("ledger", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("ended_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("run_id", "step"),
    )
    op.create_table(
        "attempts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("runner_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float()),
        sa.Column("ended_by", sa.Text()),
        sa.Column("failure_reason", sa.Text()),
        sa.Column("failure_message", sa.Text()),
        sa.Column("failure_traceback", sa.Text()),
        sa.Column("output", sa.Text()),
        sa.Column("marked", sa.Text()),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("rollout_id", "number"),
    )
    op.create_index("attempts_by_lease", "attempts", ["lease_until"], sqlite_where=sa.text("status = 'running'"))
    op.create_index(
        "attempts_running", "attempts", ["rollout_id"], unique=True, sqlite_where=sa.text("status = 'running'")
    )
    op.create_table(
        "calls",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("wire", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("prompt_node", sa.Integer()),
        sa.Column("samples", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("used", sa.Text()),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("reused_tokens", sa.Integer(), nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("first_token_s", sa.Float()),
        sa.Column("total_s", sa.Float()),
        sa.Column("external", sa.Text()),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("attempt_id", "index"),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "nodes",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer()),
        sa.Column("sampled", sa.Boolean(), nullable=False),
        sa.Column("call_index", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary()),
        sa.Column("log_kept", sa.LargeBinary()),
        sa.Column("kept_ids", sa.LargeBinary()),
        sa.Column("kept_offsets", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["attempt_id", "parent"], ["nodes.attempt_id", "nodes.id"]),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"]),
        sa.PrimaryKeyConstraint("attempt_id", "id"),
    )
    op.create_table(
        "rewards",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text()),
        sa.Column("agent", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"]),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_rewards_rollout_id", "rewards", ["rollout_id"])
