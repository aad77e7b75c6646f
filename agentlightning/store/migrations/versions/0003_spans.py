"""What agents tell of their attempts is kept as spans, and what they say of a reward with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """A migration only goes forward, so there is no downgrade."""
    op.add_column("rewards", sa.Column("attributes", sa.Text()))
    op.create_table(
        "spans",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("span_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("attempt_id", "span_id"),
    )
