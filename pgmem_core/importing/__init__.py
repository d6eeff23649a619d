"""Conversations from files: pgmem's own JSON Lines, message lists, ChatGPT exports, LoCoMo.

`read(path)` finds out which it is and yields `Conversation`s, as they are read where the format allows.
Nothing here touches a database.

pgmem's own format
    JSON Lines in UTF-8, one object a line, told apart by "type". Only the keys shown are allowed, those in
    brackets may be left out, null is the same as left out::

        {"type": "conversation", ["name", "user_id"]}
        {"type": "session", "session_id", ["user_id", "title", "created_at"]}
        {"type": "turn", "session_id", "role", "content",
                         ["id", "seq", "name", "tool_calls", "tool_call_id", "created_at", "metadata"]}
        {"type": "question", "text", ["evidence": [turn ids], "category", "answer"]}

    A conversation ends where the next one starts. Without a conversation line, each run of turns of one
    session is a conversation by itself. Session lines may be left out. `content` is a string or a list of
    blocks such as {"type": "text", "text": ...} and {"type": "image", "alt": ..., "url": ...}, and may be
    left out of a turn with tool calls. Turns are ordered by "seq" where all of a session have one, else
    as they come. Times are ISO 8601 (without an offset: UTC). The same records may be nested, "turns" in a
    session and "sessions" and "questions" in a conversation, as one object for people to edit.
    `dump_jsonl` writes it.

Message lists
    [{"role", "content", "tool_calls", "tool_call_id", "name"}, ...], an object with "messages", a list of
    either, or one a line. The object may carry "session_id" (or thread_id, conversation_id, id), "user_id",
    "title" and "created_at". Where it does not, or there is none, each message may carry "session_id" (or
    thread_id, conversation_id) and "user_id": they are grouped by them, in order, and a user given to `read`
    fills in what they do not say and contradicts none. Other keys of a message go into its metadata.

A whole memory, as `export` writes it, is no conversation: see `archive`.

ChatGPT's conversations.json (or the .zip with it in), and LoCoMo samples: see `chatgpt` and `locomo`.

Problems
    What ends the reading always raises InvalidArgument: no such file, not UTF-8, no format we know, broken
    JSON inside an array. What can be left out (a line, a message, a time that is no time) raises too, unless
    `on_problem` is given: then it is called with a `Problem` for each, and the rest is read. Either way
    the conversations yielded before stand. Reading the file again gives the same ids, so storing it again
    adds nothing; but a message list without a "session_id" gets new ids when its content changes.

Text is passed on as it is, NUL characters and lone surrogates included: how to keep them is the store's
matter. Ids follow the store's own rule (`pgmem_core.ids.check_id`); a number becomes a string.
"""

from __future__ import annotations

from pgmem_core.importing.reader import read
from pgmem_core.importing.records import dump_jsonl
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn, Problem, Question

__all__ = [
    "Conversation",
    "ImportedSession",
    "ImportedTurn",
    "Problem",
    "Question",
    "dump_jsonl",
    "read",
]
