"""The public face in one piece: open, read before the reply, write after it, compact off the turn, observe, read again.

The same lines run awaited and, without the word, blocking; on the embedded server, with nothing set up before.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgmem_core import Authority, CompiledContext, PgMem, SubjectRef
from tests.fix_postgres import scratch
from tests.telling import quoting
from tests.test_forget import whereabouts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server needs Linux or macOS")

SEED = """
from pgmem_core import AsyncPgMem, Authority, SubjectRef

mem = AsyncPgMem.embedded("./memory", **options)
await mem.setup()                                         # creates or upgrades the schema `pgmem`
session = await mem.session.create(group_id="acme", user_id="u_123")

ctx = await session.compile_context(query=user_text)      # read memory -> the prompt (the only work on the turn)
reply = await your_model(ctx.messages)
turn = await session.add_turn(role="assistant", content=reply)   # write memory, after the reply
await session.compact_async()                             # summarise off the turn

await session.observe(subject=SubjectRef(kind="customer", identifier="u_123"), predicate="billing.plan",
                      value="annual", authority=Authority.user, evidence=[turn])
ctx = await session.compile_context(query=q, injected_context=["subscription: active"])
"""
ASKED = "I am planning a trip to Porto in May with my sister Nell, by train if we can."
REPLY = "Porto in May is mild; the train from Lisbon takes about three hours."


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder that others may pass through: as root, the embedded server is another user's."""
    made = Path(tempfile.mkdtemp(prefix="pgs-", dir=scratch()))
    made.chmod(0o755)
    monkeypatch.chdir(made)
    yield made
    monkeypatch.undo()
    shutil.rmtree(made, ignore_errors=True)


def run_seed(face: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run the lines in one of the two forms, close, and return their names and the prompts the model saw."""
    seen: list[Any] = []

    def answer(messages: Any) -> str:
        seen.append(messages)
        return REPLY

    space: dict[str, Any] = {"user_text": ASKED, "q": "And the plan?", "options": options, "seen": seen}
    if face == "sync":
        space["your_model"] = answer
        exec(SEED.replace("await ", "").replace("AsyncPgMem", "PgMem"), space)
        space["mem"].form()
        space["mem"].close()
        return space

    async def your_model(messages: Any) -> str:
        return answer(messages)

    space["your_model"] = your_model
    body = "".join(f"    {line}\n" for line in SEED.splitlines())
    exec(f"async def main():\n{body}    await mem.form()\n    await mem.close()\n    return locals()", space)
    return {**space, **asyncio.run(space["main"]())}


@pytest.mark.parametrize(("face", "summarises"), [("sync", False), ("async", False), ("async", True)])
def test_the_seed_runs_whole(folder: Path, face: str, summarises: bool) -> None:
    done = run_seed(face, {"summarizers": quoting()} if summarises else {})
    # The model saw the question, last; nothing else was known.
    [messages] = done["seen"]
    assert messages[-1] == {"role": "user", "content": ASKED}
    assert done["turn"].seq == 2
    ctx: CompiledContext = done["ctx"]
    sent = [str(message["content"]) for message in ctx.messages]
    assert ctx.messages[-1]["content"] == "And the plan?"
    assert ASKED in sent
    assert REPLY in sent
    assert "- subscription: active" in sent[-2]
    assert "- u_123 billing plan: annual" in "\n".join(sent)
    assert [item.kind for item in ctx.sections["external"].items] == ["external"]
    assert ctx.token_count <= ctx.budget_tokens

    with PgMem.embedded("./memory") as mem:  # another program, later
        session = mem.session.get(done["session"].id, group_id="acme")
        # Nothing is lost and nothing is there twice, the second question included.
        assert [(turn.role, turn.text) for turn in session.turns()] == [
            ("user", ASKED), ("assistant", REPLY), ("user", "And the plan?")
        ]  # fmt: skip
        [fact] = mem.facts(SubjectRef("customer", "u_123"), group_id="acme")
        assert (fact.predicate, fact.value, fact.authority) == ("billing.plan", "annual", Authority.user)
        assert [one.turn_id for one in fact.evidence] == [done["turn"].id]
        assert mem.facts(SubjectRef("customer", "u_123")) == []  # of the other group
        episodes = mem.search("trip to Porto", user_id="u_123", group_id="acme", kind="episode")
        assert len(episodes) == summarises
        # External state is never stored; what was said is.
        assert mem._server is not None
        assert whereabouts(mem._server.dsn, "subscription: active") == {}
        assert "records.content" in whereabouts(mem._server.dsn, ASKED)
