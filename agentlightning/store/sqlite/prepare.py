"""Makes an SQLite database, or brings an older one to the newest schema, inside one transaction that other processes
wait for, so a database is never seen half made.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from agentlightning.errors import StoreError
from agentlightning.store import migrate
from agentlightning.store.schema import metadata

APPLICATION_ID = 0x41474C31
"""SQLite's mark in the file header that says whose database it is: "AGL1"."""


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
    ready = _revision(connection, path) == migrate.REVISION
    # Rebuilding a table, which is how SQLite alters one, must not fire its foreign keys; the pragma has no effect in a
    # transaction.
    run("PRAGMA foreign_keys = OFF")
    # Also where the database is ready: one that cannot be written is refused now, not at the first write.
    run("BEGIN IMMEDIATE")
    found = migrate.REVISION if ready else _revision(connection, path)
    if found is None:
        metadata.create_all(connection)
        run("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        run("INSERT INTO alembic_version VALUES (?)", (migrate.REVISION,))
        run(f"PRAGMA application_id = {APPLICATION_ID}")
    elif found != migrate.REVISION:
        migrate.upgrade(connection, path, found)
        broken = run("PRAGMA foreign_key_check").all()
        if broken:
            raise StoreError(
                f"{path} could not be migrated from schema {found} to {migrate.REVISION}: {len(broken)} rows refer to "
                "rows that are gone"
            )
    run("COMMIT")
    run("PRAGMA foreign_keys = ON")


def _revision(connection: Connection, path: str) -> str | None:
    """The revision the database is at; None where it is empty. StoreError where it is not ours."""
    if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one() == 0:
        return None
    if connection.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite database of another program; name another file")
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
