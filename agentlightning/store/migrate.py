"""Bringing a database to the tables in schema.py: created in one go where it is new, migrated where it is older,
refused otherwise.

Everything happens inside one transaction that other processes wait for, so a database is never seen half made. Alembic
is loaded only where there is something to migrate.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine

from agentlightning.errors import StoreError
from agentlightning.store.schema import APPLICATION_ID, REVISION, metadata

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare(engine: Engine, path: str) -> Connection:
    """A connection to the database, which is at ``REVISION`` then. The engine's connections must be in autocommit mode.

    Raises StoreError for a database of another program, or of a newer version of this one.
    """
    connection = engine.connect()
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        engine.dispose()  # closes the file, which undoes what was not committed
        raise
    return connection


def _prepare(connection: Connection, path: str) -> None:
    run = connection.exec_driver_sql
    ready = _revision(connection, path) == REVISION
    # Rebuilding a table, which is how SQLite alters one, must not fire its foreign keys; the pragma has no effect in a
    # transaction.
    run("PRAGMA foreign_keys = OFF")
    run(
        "BEGIN IMMEDIATE"
    )  # also where the database is ready: one that cannot be written is refused now, not at the first write
    found = REVISION if ready else _revision(connection, path)
    if found is None:
        metadata.create_all(connection)
        run("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        run("INSERT INTO alembic_version VALUES (?)", (REVISION,))
        run(f"PRAGMA application_id = {APPLICATION_ID}")
    elif found != REVISION:
        _upgrade(connection, path, found)
    run("COMMIT")
    run("PRAGMA foreign_keys = ON")


def _revision(connection: Connection, path: str) -> str | None:
    """The revision the database is at; None where it is empty. StoreError where it is not ours."""
    if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one() == 0:
        return None
    if connection.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite database of another program; name another file")
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()


def _upgrade(connection: Connection, path: str, found: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found not in known:
        raise StoreError(
            f"{path} was written by a newer version of agentlightning (schema {found}; this one knows {REVISION}); "
            "upgrade agentlightning"
        )
    command.upgrade(config, REVISION)
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        raise StoreError(
            f"{path} could not be migrated from schema {found} to {REVISION}: {len(broken)} rows refer to rows that "
            "are gone"
        )
