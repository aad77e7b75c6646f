"""Brings a database of an older version to the newest schema. Alembic is loaded only where there is one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from agentlightning.errors import StoreError
from agentlightning.store.schema import REVISION

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: Connection, place: str, found: str) -> None:
    """Brings the database from revision ``found`` to ``REVISION``, in the transaction that is open. ``place`` names it
    in errors. Raises StoreError for a revision of a newer version of this package."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found not in known:
        raise StoreError(
            f"{place} was written by a newer version of agentlightning (schema {found}; this one knows {REVISION}); "
            "upgrade agentlightning"
        )
    command.upgrade(config, REVISION)
