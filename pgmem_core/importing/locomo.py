"""LoCoMo: long chats of two people in dated sessions, with questions and the turns that answer them.

speaker_a is the user and speaker_b the assistant, each with the speaker as `name`. Turn "D1:3" of "conv-26"
is "conv-26/D1:3". A session's turns are one second apart from its time on, which keeps their order; the times
carry no zone and are taken as UTC. A shared picture becomes an image block with its caption as `alt`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from pgmem_core.importing import fields
from pgmem_core.importing.fields import FieldError, Ids, Report
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn, Question

__all__ = ["conversation", "is_sample"]

_SESSION = re.compile(r"session_(\d{1,6})")
_TIME = re.compile(r"(\d{1,2}):(\d{2})\s*([ap])m\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def is_sample(value: dict[str, Any]) -> bool:
    """Whether an object looks like one LoCoMo sample."""
    return isinstance(value.get("conversation"), dict)


def conversation(value: dict[str, Any], where: str, report: Report, ids: Ids) -> Conversation | None:
    """Return one sample, its sessions in the order of their numbers."""
    body: dict[str, Any] = value["conversation"]
    try:
        speakers = (fields.text(body, "speaker_a"), fields.text(body, "speaker_b"))
        name = fields.identifier(value, "sample_id") or ids.session(fields.shallow(body))
    except FieldError as fault:
        report.problem(where, fault)
        return None
    numbers = sorted(int(match[1]) for key in body if (match := _SESSION.fullmatch(key)))
    sessions: list[ImportedSession] = []
    seen: set[str] = set()
    for number in numbers:
        place = f"{where}, session_{number}"
        turns = _turns(body, number, name, speakers, place, report, seen)
        if turns:
            session_id = f"{name}/session_{number}"
            sessions.append(ImportedSession(session_id, name, None, turns[0].created_at, tuple(turns)))
    return Conversation(name, name, tuple(sessions), _questions(value, name, where, report, seen))


def parse_time(value: str) -> datetime:
    """Return "1:56 pm on 8 May, 2023" as an aware UTC time."""
    match = _TIME.fullmatch(value.strip())
    month = match[5][:3].lower() if match else ""
    if match is None or month not in _MONTHS or not 1 <= int(match[1]) <= 12:
        raise FieldError(f"the time is {value!r}, wanted the form '1:56 pm on 8 May, 2023'")
    hour = int(match[1]) % 12 + (12 if match[3].lower() == "p" else 0)
    try:
        return datetime(int(match[6]), _MONTHS.index(month) + 1, int(match[4]), hour, int(match[2]), tzinfo=UTC)
    except ValueError as exc:
        raise FieldError(f"the time is {value!r}: {exc}") from exc


def _turns(
    body: dict[str, Any],
    number: int,
    name: str,
    speakers: tuple[str | None, str | None],
    where: str,
    report: Report,
    seen: set[str],
) -> list[ImportedTurn]:
    started: datetime | None = None
    try:
        entries = fields.items(body, f"session_{number}")
        started = parse_time(fields.text(body, f"session_{number}_date_time") or "")
    except FieldError as fault:
        report.problem(where, fault)  # collected: the turns are kept, without a time
        entries = body[f"session_{number}"] if isinstance(body[f"session_{number}"], list) else []
    turns: list[ImportedTurn] = []
    for position, entry in enumerate(entries):
        try:
            created_at = started + timedelta(seconds=position) if started else None
            turn = _turn(entry, f"D{number}:{position + 1}", name, speakers, created_at)
            if turn.id in seen:
                raise FieldError(f"turn id {turn.id!r} is used twice")
        except FieldError as fault:
            report.problem(f"{where}, turn {position + 1}", fault)
        else:
            seen.add(turn.id)
            turns.append(turn)
    return turns


def _turn(
    entry: Any,
    default_id: str,
    name: str,
    speakers: tuple[str | None, str | None],
    created_at: datetime | None,
) -> ImportedTurn:
    if not isinstance(entry, dict):
        raise FieldError(f"the turn is {fields.describe(entry)}, wanted an object with 'speaker' and 'text'")
    speaker = fields.text(entry, "speaker")
    if speaker is None or speaker not in speakers:
        raise FieldError(f"'speaker' is {fields.describe(speaker)}, wanted one of {speakers!r}")
    said = fields.text(entry, "text")
    if said is None:
        raise FieldError("'text' is missing")
    caption = fields.text(entry, "blip_caption")
    content: str | list[dict[str, Any]] = said
    if caption:
        image: dict[str, Any] = {"type": "image", "alt": caption}
        urls = entry.get("img_url")
        urls = urls if isinstance(urls, list) else [urls]
        if urls and isinstance(urls[0], str):
            image["url"] = urls[0]
        content = [{"type": "text", "text": said}, image]
    return ImportedTurn(
        id=f"{name}/{fields.identifier(entry, 'dia_id') or default_id}",
        role="user" if speaker == speakers[0] else "assistant",
        content=content,
        name=speaker,
        created_at=created_at,
    )


def _questions(
    value: dict[str, Any], name: str, where: str, report: Report, turn_ids: set[str]
) -> tuple[Question, ...]:
    found: list[Question] = []
    try:
        entries = fields.items(value, "qa")
    except FieldError as fault:
        report.problem(where, fault)
        return ()
    for number, entry in enumerate(entries, start=1):
        try:
            if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
                raise FieldError(f"it is {fields.describe(entry)}, wanted an object with 'question'")
            named = fields.items(entry, "evidence")
        except FieldError as fault:
            report.problem(f"{where}, question {number}", fault)
            continue
        # Entries such as "D8:6; D9:17" name several turns, some such as "D:11:26" none that exists.
        cited = (f"{name}/{part}" for item in named for part in re.split(r"[;,\s]+", str(item)) if part)
        category, answer = entry.get("category"), entry.get("answer")
        found.append(
            Question(
                text=entry["question"],
                evidence=tuple(dict.fromkeys(turn_id for turn_id in cited if turn_id in turn_ids)),
                category=None if category is None else str(category),
                answer=None if answer is None else str(answer),
            )
        )
    return tuple(found)
