"""What the relevance floor keeps out, and what it costs: the curve over thresholds, and the default.

    python -m benchmarks.restraint CONVERSATIONS.json [--dsn DSN]

The file is LoCoMo's (see `pgmem import --help`). Each conversation is a user's memory, facts formed by patterns. Sixty
queries that nothing in them answers (general knowledge, code, greetings, "ok", "next") are asked of each through
`compile_context`: rejected where no episode and no fact is recalled. And the answerable questions of the file are
searched under the same floor: recall@10 of their evidence.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import psycopg

from pgmem_core import PgMem
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.ids import turn_uuid
from pgmem_core.importing import Conversation, read
from pgmem_core.importing.evaluation import counted, evaluate

UNRELATED = (
    # general knowledge
    "What is the tallest waterfall in Venezuela?", "Who discovered penicillin?", "How far is the Moon from the Earth?",
    "What is the chemical formula of table salt?", "When did the Byzantine Empire end?",
    "How many chromosomes does a human cell have?", "What causes the northern lights?",
    "Which planet has the most moons?", "What is the speed of sound in water?", "Who painted The Night Watch?",
    "What is the currency of Hungary?", "How does a heat pump work?", "What is the difference between mass and weight?",
    "Explain the causes of the Thirty Years' War", "What does the mitochondrion do?", "What is a Nash equilibrium?",
    "How is cheese rind formed chemically?", "Name the noble gases", "What is the half-life of carbon-14?",
    "What is the longest river in Siberia?",
    # code and tools
    "Write a regex that matches an IPv4 address", "How do I squash the last three commits in git?",
    "Why is my Rust borrow checker complaining about a mutable reference?", "Sort a list of dicts by a key in Python",
    "What does EXPLAIN ANALYZE show in Postgres?", "How do I center a div with flexbox?",
    "TypeError: cannot read properties of undefined in React", "Difference between TCP and UDP",
    "How do I mount a volume in docker compose?", "Implement binary search in Go",
    "What is the time complexity of heapsort?", "How to undo a pushed commit without force?",
    "Segmentation fault when freeing a pointer twice", "Set up a cron job that runs every 15 minutes",
    "What is a foreign key constraint?", "terraform state is locked, what now?", "How do I parse JSON in bash?",
    "Explain the CAP theorem", "Convert a CSV file to Parquet with pandas", "What is dependency injection?",
    # arithmetic, language, chores of an assistant
    "What is 17 percent of 2,340?", "Solve 3x + 7 = 22", "Convert 5 miles to kilometres",
    "What is the past participle of 'to swim'?", "Translate 'where is the station' into Italian",
    "Give me a synonym for 'ubiquitous'", "How many ounces are in a litre?", "What day of the week was 1 January 2000?",
    "Write a haiku about a stapler", "Proofread this sentence: the datas is wrong",
    # small talk
    "hi", "hello there", "good evening", "ok", "next", "thanks a lot", "go on", "yes please", "haha", "never mind",
)  # fmt: skip
FLOORS: tuple[float | str | None, ...] = (None, 0.30, 0.36, 0.40, 0.44, 0.48, 0.52, 0.56, "default")


def load(mem: PgMem, conversations: Sequence[Conversation]) -> dict[str, str]:
    """Store the conversations, each as a user's; return the file's turn ids by ours."""
    names = {}
    for conversation in conversations:
        for part in conversation.sessions:
            session = mem.session.open(part.session_id, user_id=conversation.name)
            turns: list[dict[str, Any]] = [
                {"role": t.role, "content": t.content, "name": t.name, "created_at": t.created_at, "id": t.id}
                for t in part.turns
            ]
            session.add_turns(turns)
            names.update({str(turn_uuid(t.id, "default", part.session_id)): t.id for t in part.turns})
    mem.form()
    return names


def injected(mem: PgMem, user: str, query: str, floor: float | str | None) -> int:
    """Return how many episodes and facts a prompt for the query recalls (standing facts are no recall)."""
    session = mem.session.open(f"asks-{user}", user_id=user)
    sections = session.compile_context(query, store_query=False, floor=floor).sections
    recalled = [item for item in sections["semantic"].items if item.parts is not None]
    return len(sections["episodic"]) + len(recalled)


def recall(
    mem: PgMem, conversations: Sequence[Conversation], names: dict[str, str], floor: float | str | None
) -> float:
    """Return recall@10 of the evidence of all answerable questions."""
    found = []
    for conversation in conversations:
        rankings = [
            [
                (names[memory.id], memory.session_id)
                for memory in mem.search(
                    question.text, user_id=conversation.name, top_k=20, floor=floor, kind="turn"
                )
            ]
            if counted(question)
            else []
            for question in conversation.questions
        ]  # fmt: skip
        found.append((conversation, rankings))
    return evaluate(found).overall.turn_recall[1]


def main() -> None:
    """Print the curve, and the default floor for each conversation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--dsn", default=None)
    options = parser.parse_args()
    conversations = list(read(options.file))
    with tempfile.TemporaryDirectory() as folder:
        server = None if options.dsn else EmbeddedPostgres(f"{folder}/pg")
        dsn = options.dsn or (server.start() if server else "")
        with PgMem(dsn, extractor="patterns", schema_name="restraint", formation="manual", log_injections=False) as mem:
            names = load(mem, conversations)
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("VACUUM ANALYZE restraint.records, restraint.postings")
            print(f"{len(UNRELATED)} unrelated queries over {len(conversations)} conversations")
            for floor in FLOORS:
                shares = {
                    one.name: sum(not injected(mem, one.name, query, floor) for query in UNRELATED) / len(UNRELATED)
                    for one in conversations
                }
                mean, worst = sum(shares.values()) / len(shares), min(shares.values())
                print(
                    f"floor {floor!s:8} rejected {mean:.1%} (worst conversation {worst:.1%}),"
                    f" recall@10 {recall(mem, conversations, names, floor):.3f}",
                    flush=True,
                )
            print("default, by conversation: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
        if server is not None:
            server.release()


if __name__ == "__main__":
    main()
