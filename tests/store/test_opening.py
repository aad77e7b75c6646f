"""What can be opened is at the newest schema; what cannot is refused in one clear line."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine

from agentlightning.errors import ConfigError, StoreError
from agentlightning.store import migrate, open_store, schema
from agentlightning.store.sqlite import prepare

from . import make


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host/db", "'postgresql' is not a store this version has; supported is sqlite:///PATH"),
        ("record.db", "supported is sqlite:///PATH"),
        ("sqlite:///:memory:", "would lose what it acknowledged"),
        ("sqlite:///", "would lose what it acknowledged"),
        ("sqlite:///x.db?mode=ro", "options after"),
    ],
)
def test_a_url_that_cannot_be_served_is_refused_by_name(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(url)


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'memory'"):
        open_store(make.url(tmp_path), "memory")  # type: ignore[arg-type]


async def test_a_missing_folder_is_made_and_a_missing_record_only_where_asked(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b%20é"
    with pytest.raises(StoreError, match="there is no record at"):
        open_store(make.url(folder), create=False)
    assert not folder.exists()
    await (await make.opened(folder)).close()
    store = open_store(make.url(folder), create=False)
    assert await store.get_run("r") == make.run()
    await store.close()
    assert os.listdir(folder) == ["record.db"], "the write-ahead log is folded in at the end"


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await make.opened(tmp_path)
    await store.close()
    await store.close()
    for call in (store.runs(), store.create_run(make.run("x"))):
        with pytest.raises(StoreError, match="the store is closed"):
            await call


def refused(path: Path, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_store(f"sqlite:///{path}")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_database_of_ours_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all\n" * 100)
    refused(text, "not an SQLite database")
    assert text.read_text() == "not a database at all\n" * 100
    refused(tmp_path, "cannot be opened")
    refused(text / "record.db", "folder that can be written")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    refused(other, "another program")


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        created(folder / "record.db")
        (folder / "locked").mkdir(mode=0o000)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:  # root may write anywhere, so nobody tries
            os.seteuid(65534)
        try:
            # Which of the two it says depends on whether the folders above may be entered.
            refused(
                folder / "new.db",
                "(cannot be opened|Permission denied); name a file in a folder that (exists and )?can be written",
            )
            refused(folder / "deeper" / "new.db", "Permission denied; name a file in a folder that can be written")
            refused(
                folder / "locked" / "deeper" / "new.db",
                "Permission denied; name a file in a folder that can be written",
            )
            refused(folder / "record.db", "can(not)? be written")
        finally:
            if root:
                os.seteuid(0)
        folder.chmod(0o755)
        (folder / "locked").chmod(0o755)


def test_a_schema_newer_than_this_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    created(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    refused(path, "written by a newer version of agentlightning .schema 9999; this one knows")


# --------------------------------------------------------------------------- migrations


def connected(path: Path) -> Connection:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, isolation_level="AUTOCOMMIT")
    return engine.connect()


def created(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool, isolation_level="AUTOCOMMIT")
    prepare.prepare(engine, str(path)).close()


def structure(path: Path) -> dict[str, Any]:
    """Everything SQLite knows of the schema, whatever order its text was in."""
    connection = sqlite3.connect(path)

    def rows(sql: str) -> list[Any]:
        return sorted(connection.execute(sql).fetchall(), key=repr)

    found: dict[str, Any] = {}
    for (table,) in rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
        found[table] = rows(f"PRAGMA table_xinfo({table})")
        keys: dict[int, list[Any]] = {}
        for id, *key in rows(f"PRAGMA foreign_key_list({table})"):
            keys.setdefault(id, []).append(key)
        found[table, "keys"] = sorted(map(repr, keys.values()))
        indexes = rows(f"PRAGMA index_list({table})")
        found[table, "indexes"] = sorted((rows(f"PRAGMA index_info({name})"), rest) for _, name, *rest in indexes)
    found["indexes"] = rows("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    connection.close()
    return found


def test_migrating_from_nothing_equals_creating(tmp_path: Path) -> None:
    created(tmp_path / "created.db")
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    with connected(tmp_path / "migrated.db") as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    assert structure(tmp_path / "migrated.db") == structure(tmp_path / "created.db")
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This version's migrations and one more, which rebuilds a table that others refer to."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.MIGRATIONS, folder)
    script = folder / "versions" / "next.py"
    script.write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision = 'next'\ndown_revision = '{schema.REVISION}'\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('runs', recreate='always') as runs:\n"
        "        runs.add_column(sa.Column('note', sa.Text(), server_default='none'))\n"
    )
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)
    monkeypatch.setattr(migrate, "REVISION", "next")
    return script


async def test_an_older_database_is_migrated_with_all_it_holds(
    tmp_path: Path, next_revision: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrate, "REVISION", schema.REVISION)
        store = await make.opened(tmp_path, rollouts=3)
        await make.leased(store)
        before = await store.rollouts("r")
        await store.close()
    store = open_store(make.url(tmp_path))
    assert await store.rollouts("r") == before and await store.get_run("r") == make.run()
    assert len(await make.leased(store, 9)) == 2
    with pytest.raises(StoreError, match="no run nobody"):
        await store.enqueue([make.rollout(0, "nobody")])
    await store.close()
    with connected(tmp_path / "record.db") as connection:
        assert connection.exec_driver_sql("SELECT note FROM runs").scalar_one() == "none"
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "next"


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, next_revision: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.db"
    with monkeypatch.context() as older:
        older.setattr(migrate, "REVISION", schema.REVISION)
        created(path)
    before = structure(path)
    next_revision.write_text(next_revision.read_text() + "    raise RuntimeError('half way')\n")
    with pytest.raises(RuntimeError, match="half way"):
        created(path)
    assert structure(path) == before


# --------------------------------------------------------------------------- costs


def test_several_processes_may_make_the_same_database_at_once(tmp_path: Path) -> None:
    program = (
        "import sys, agentlightning.store.sqlite.store; from agentlightning.store import open_store; print(flush=True); "
        "input()\n"
        "for i in range(5): open_store(f'sqlite:///{sys.argv[1]}/{i}.db')"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], **pipes) for _ in range(3)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [(child.communicate(timeout=600)[1], child.returncode) for child in children] == [("", 0)] * 3


def test_a_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # the lock for which SQLite does not wait by itself
    timer = threading.Timer(0.3, other.execute, ["ROLLBACK"])
    timer.start()
    created_by_us = open_store(f"sqlite:///{path}")
    assert timer.finished.is_set()
    other.close()
    asyncio.run(created_by_us.close())


def test_opening_loads_no_alembic_and_importing_loads_no_database(tmp_path: Path) -> None:
    program = (
        "import sys; from agentlightning.store import open_store; assert 'sqlalchemy' not in sys.modules;"
        "open_store(sys.argv[1]); open_store(sys.argv[1]); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, make.url(tmp_path)], check=True)
