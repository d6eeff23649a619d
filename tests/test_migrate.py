"""Setup of a database: what it creates, what it needs, and what it says when it is refused (B12, D3).

Each message that asks an admin for SQL is obeyed to the letter, and setup must then succeed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from pgmem_core import AsyncMemoryStore, AsyncPgMem, MemoryStore, PermissionDenied, PgMem, SchemaError
from pgmem_core.database import migrate
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.fix_postgres import PostgresServer

# A name that is no plain identifier, as identity providers make them.
ROLE = "app-user.1"


def dump(dsn: str, schema: str = "pgmem") -> list[tuple[Any, ...]]:
    """Everything that setup creates, as the catalogs describe it, with the schema's own name taken out."""
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            """
            WITH s AS (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s)
            SELECT 'column', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod)
                   || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END || a.attstorage::text
                   || coalesce(' ' || pg_get_expr(d.adbin, d.adrelid), '')
            FROM pg_class c JOIN s ON c.relnamespace = s.oid
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE c.relkind IN ('r', 'v')
            UNION ALL SELECT 'index', c.relname, pg_get_indexdef(c.oid)
            FROM pg_class c JOIN s ON c.relnamespace = s.oid WHERE c.relkind = 'i'
            UNION ALL SELECT 'view', c.relname, pg_get_viewdef(c.oid)
            FROM pg_class c JOIN s ON c.relnamespace = s.oid WHERE c.relkind = 'v'
            UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(k.oid)
            FROM pg_constraint k JOIN s ON k.connamespace = s.oid WHERE contype <> 'n'
            UNION ALL SELECT 'function', p.proname, pg_get_functiondef(p.oid)
            FROM pg_proc p JOIN s ON p.pronamespace = s.oid
            UNION ALL SELECT 'trigger', t.tgname, pg_get_triggerdef(t.oid)
            FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN s ON c.relnamespace = s.oid
            WHERE NOT t.tgisinternal
            UNION ALL SELECT 'options', c.relname, c.reloptions::text
            FROM pg_class c JOIN s ON c.relnamespace = s.oid WHERE c.reloptions IS NOT NULL
            UNION ALL SELECT 'statistics', stxname, pg_get_statisticsobjdef(x.oid)
            FROM pg_statistic_ext x JOIN s ON x.stxnamespace = s.oid
            ORDER BY 1, 2, 3""",
            {"schema": schema},
        ).fetchall()
    own = re.compile(rf"\b{schema}\b(?=[.,\"']|$)")
    return [(kind, name, own.sub("$", text)) for kind, name, text in rows]


def leftovers(dsn: str) -> list[str]:
    """Names of our schemas and of the extension, if any of them is there."""
    with psycopg.connect(dsn) as conn:
        return [
            name
            for (name,) in conn.execute(
                """SELECT nspname FROM pg_namespace WHERE nspname IN ('pgmem', 'notes')
                   UNION ALL SELECT extname FROM pg_extension WHERE extname = 'vector'"""
            )
        ]


@contextlib.contextmanager
def plain_role(server: PostgresServer, dsn: str, name: str = ROLE) -> Iterator[str]:
    """Yield the DSN of a role that may only log in."""
    role = sql.Identifier(name)
    with psycopg.connect(dsn, autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        admin.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, role))
        try:
            yield dsn.replace("postgres@", f"{quote(name)}@", 1)
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def obey(dsn: str, message: str) -> None:
    """Run, as the admin, the SQL that the message ends with."""
    found = re.search(r"an admin must run once, in database \S+: (.+;)$", message)
    assert found, message
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(found[1].encode())


async def use(memory: Face) -> None:
    """Write, embed and find again."""
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "my bicycle is green")
    assert (await memory.form()).errors == {}
    [found] = await memory.search("bicycle", user_id="u1", top_k=1)
    assert found.content == "my bicycle is green"
    assert found.parts.cosine is not None


# -- what setup creates ------------------------------------------------------------------------------------------


async def test_a_second_setup_changes_nothing(make_memory: Maker, dsn: str) -> None:
    first = await make_memory()
    before = dump(dsn)
    assert {kind for kind, _, _ in before} >= {"column", "index", "view", "constraint", "function", "trigger"}
    await first.setup()
    await (await make_memory()).setup()
    assert dump(dsn) == before


async def test_upgraded_step_by_step_equals_fresh(
    make_memory: Maker, dsn: str, bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_memory()
    known = migrate.migrations()
    assert len(known) > 1
    for count in range(1, len(known) + 1):
        monkeypatch.setattr(migrate, "migrations", lambda count=count: known[:count])
        with MemoryStore(bare_dsn):
            pass
        with psycopg.connect(bare_dsn) as conn:
            [versions] = conn.execute("SELECT array_agg(version ORDER BY version) FROM pgmem.schema_migrations")
            assert versions[0] == [version for version, _, _ in known[:count]]
    with PgMem(bare_dsn):  # registers the model that the other database has
        pass
    assert dump(bare_dsn) == dump(dsn)


async def test_a_schema_of_another_name(make_memory: Maker, make_store: Maker, dsn: str) -> None:
    await use(await make_memory(schema_name="notes"))
    assert leftovers(dsn) == ["notes", "vector"]
    await use(await make_memory())
    assert dump(dsn, "notes") == dump(dsn)
    notes, other = await make_store(schema_name="notes"), await make_store()
    await notes.add("t1", "s1", "only in notes", [1.0, 0.0])
    assert await other.count("t1") == 0


async def test_the_extension_in_another_schema(make_memory: Maker, bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as admin:
        admin.execute('CREATE SCHEMA "Ext 1"; CREATE EXTENSION vector SCHEMA "Ext 1"')
    await use(await make_memory(dsn=bare_dsn))
    with psycopg.connect(bare_dsn) as conn:  # a reader's own search_path does not matter
        [(text, same)] = conn.execute('SELECT content, embedding OPERATOR("Ext 1".=) embedding FROM pgmem.memories')
        assert (text, same) == ("my bicycle is green", True)


# -- plain roles (D3) --------------------------------------------------------------------------------------------


async def test_plain_role_with_the_extension_installed(
    make_memory: Maker, server: PostgresServer, bare_dsn: str
) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext")
    with plain_role(server, bare_dsn) as dsn:
        memory = await make_memory(dsn=dsn, setup=False)
        with pytest.raises(
            PermissionDenied, match=r'GRANT USAGE ON SCHEMA "ext" TO "app-user\.1"; CREATE SCHEMA'
        ) as no:
            await memory.setup()
        assert "CREATE EXTENSION" not in str(no.value)
        obey(bare_dsn, str(no.value))
        await memory.setup()
        await use(memory)
        await memory.close()


async def test_plain_role_without_the_extension(make_memory: Maker, server: PostgresServer, bare_dsn: str) -> None:
    with plain_role(server, bare_dsn) as dsn:
        memory = await make_memory(dsn=dsn, setup=False)
        with pytest.raises(PermissionDenied, match="CREATE EXTENSION vector;") as refused:
            await memory.session.open("s1", user_id="u1")  # set up by the first use, refused all the same
        assert f'CREATE SCHEMA "pgmem" AUTHORIZATION "{ROLE}";' in str(refused.value)
        assert leftovers(bare_dsn) == []
        obey(bare_dsn, str(refused.value))  # one trip to the admin is enough
        await memory.setup()
        await use(memory)
        await memory.close()


async def test_plain_role_and_a_schema_that_is_not_its_own(
    make_memory: Maker, server: PostgresServer, dsn: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA pgmem")
    with plain_role(server, dsn) as role_dsn:
        memory = await make_memory(dsn=role_dsn, setup=False)
        with pytest.raises(PermissionDenied, match="GRANT USAGE, CREATE ON SCHEMA") as refused:
            await memory.setup()
        obey(dsn, str(refused.value))
        await memory.setup()
        await use(memory)
        await memory.close()


async def test_application_role_on_what_an_owner_set_up(make_memory: Maker, server: PostgresServer, dsn: str) -> None:
    await make_memory()
    with plain_role(server, dsn) as role_dsn:
        memory = await make_memory(dsn=role_dsn, setup=False)
        with pytest.raises(PermissionDenied, match="GRANT SELECT, INSERT, UPDATE, DELETE") as refused:
            await memory.setup()
        obey(dsn, str(refused.value))
        await memory.setup()
        await use(memory)
        assert await memory.delete_all(user_id="u1") == 1

        stranger = await make_memory(dsn=role_dsn, setup=False, embedder=FakeEmbedder(), schema_name="pgmem")
        with pytest.raises(Exception, match="embedder 'fake' gives 8 dimensions"):
            await stranger.setup()
        await stranger.close()
        await memory.close()


async def test_a_new_model_needs_the_owner(make_store: Maker, server: PostgresServer, dsn: str) -> None:
    await make_store()
    with plain_role(server, dsn) as role_dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            role = sql.Identifier(ROLE)
            admin.execute(sql.SQL("GRANT USAGE ON SCHEMA pgmem TO {}").format(role))
            admin.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA pgmem TO {}").format(role))
        store = await make_store(dsn=role_dsn)
        with pytest.raises(PermissionDenied, match="pgmem init"):
            await store.add("t1", "s1", "hello", [1.0, 0.0])
        with psycopg.connect(dsn) as conn:  # nothing half done
            assert conn.execute("SELECT count(*) FROM pgmem.embedding_models").fetchone() == (0,)
        await (await make_store()).add("t1", "s1", "hello", [1.0, 0.0])
        await store.add("t1", "s1", "hello again", [0.0, 1.0])
        assert [str(text) for text in await store.similar("t1", [0.0, 1.0])] == ["hello again", "hello"]
        await store.close()


async def test_an_upgrade_needs_the_owner(
    make_store: Maker, server: PostgresServer, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations()
    with monkeypatch.context() as older:
        older.setattr(migrate, "migrations", lambda: known[:1])
        await make_store()
    with plain_role(server, dsn) as role_dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            role = sql.Identifier(ROLE)
            admin.execute(sql.SQL("GRANT USAGE ON SCHEMA pgmem TO {}").format(role))
            admin.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA pgmem TO {}").format(role))
        store = await make_store(dsn=role_dsn, setup=False)
        with pytest.raises(PermissionDenied, match=r"at version 1 .*'pgmem init'.*owner"):
            await store.setup()
        await store.close()
    await (await make_store()).add("t1", "s1", "hello", [1.0, 0.0])


# -- databases that will not do ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_other_encodings_are_refused(
    make_memory: Maker, server: PostgresServer, encoding: str, request: pytest.FixtureRequest
) -> None:
    """B12"""
    name = sql.Identifier(f"pgmem_{encoding.lower()}")
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(name))
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0").format(
                name, sql.Literal(encoding)
            )
        )
        try:
            dsn = server.dsn(f"pgmem_{encoding.lower()}")
            memory = await make_memory(dsn=dsn, setup=False)
            with pytest.raises(SchemaError, match=f"encoded in {encoding}.*needs UTF8"):
                await memory.setup()
            with pytest.raises(SchemaError, match=encoding):
                await memory.add("Xin chào, 東京", user_id="u1")
            assert leftovers(dsn) == []
            await memory.close()
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


async def test_old_pgvector_is_refused(make_memory: Maker, dsn: str) -> None:
    # The wheel carries one base script only, so an old version is one by name.
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    memory = await make_memory(setup=False)
    with pytest.raises(SchemaError, match=r"pgvector 0\.7\.4 found, 0\.8 or newer.*ALTER EXTENSION vector UPDATE;"):
        await memory.setup()
    assert leftovers(dsn) == ["vector"]


async def test_no_schema_to_put_the_extension_in(make_memory: Maker, bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as admin:
        admin.execute("DROP SCHEMA public")
    memory = await make_memory(dsn=bare_dsn, setup=False)
    with pytest.raises(SchemaError, match="search_path") as refused:
        await memory.setup()
    assert leftovers(bare_dsn) == []
    with psycopg.connect(bare_dsn, autocommit=True) as admin:
        admin.execute(str(refused.value).partition("run once: ")[2].encode())
    await use(memory)


async def test_a_newer_schema_is_refused(make_memory: Maker, dsn: str) -> None:
    await make_memory()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("INSERT INTO pgmem.schema_migrations (version, name) VALUES (9999, 'from_the_future')")
    later = await make_memory(setup=False)
    with pytest.raises(SchemaError, match=r"version 9999, this pgmem knows \d+; upgrade pgmem-ai"):
        await later.setup()
    with pytest.raises(SchemaError, match="upgrade"):
        await later.search("anything", user_id="u1")


async def test_a_failed_setup_leaves_nothing(
    make_memory: Maker, bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *first, (version, name, _) = migrate.migrations()
    memory = await make_memory(dsn=bare_dsn, setup=False)
    with monkeypatch.context() as broken:
        broken.setattr(migrate, "migrations", lambda: (*first, (version, name, "SELECT 1 / 0")))
        with pytest.raises(Exception, match="division by zero"):
            await memory.setup()
    assert leftovers(bare_dsn) == []
    await memory.setup()
    await use(memory)


@pytest.mark.parametrize("name", ["Pgmem", "pg_mine", "a b", 'x"; DROP TABLE y', "", "x" * 64, "ünï"])
@pytest.mark.parametrize("face", [PgMem, AsyncPgMem, MemoryStore, AsyncMemoryStore])
def test_a_schema_name_that_is_no_plain_identifier_is_refused(face: Any, name: str) -> None:
    with pytest.raises(Exception, match="schema_name"):
        face("postgresql://localhost/x", schema_name=name)
