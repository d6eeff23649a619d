"""Identifiers: the ones we mint (UUIDv7), and the ones callers bring (any readable string)."""

from __future__ import annotations

import re
import uuid
from hashlib import blake2b

import uuid_utils.compat

from pgmem_core.errors import InvalidArgument

__all__ = ["MAX_ID_BYTES", "check_id", "is_uuid", "new_id", "turn_uuid", "user_key"]

# Ids stand in every primary key; a btree entry ends at 2,704 bytes, and a key holds up to four ids.
MAX_ID_BYTES = 255

# The namespace of turn ids derived from a caller's own. Never change it: a retried write would store twice.
_TURN_NAMESPACE = uuid.UUID("6f1f2b0e-6c55-5d0c-9e3b-0f6a1f3f7a11")
_CANONICAL_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# Category Cc, and the surrogates, which no UTF-8 text can hold.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def new_id() -> uuid.UUID:
    """Return a new UUIDv7: ids of one process sort as they were minted, also after a fork."""
    return uuid_utils.compat.uuid7()


def check_id(value: object, name: str = "user_id") -> str:
    """Return the id unchanged if Postgres, logs and indexes can all carry it.

    Any non-blank string of at most 255 UTF-8 bytes without control characters will do: `ticket#4711`,
    `o'neil@example.org`, `用户1`. Nothing is folded or trimmed, so ids that differ are different ids.
    `name` is what the error calls it.

    Raises: InvalidArgument, also for numbers, because 7 and "7" must not be two users by accident.
    """
    if not isinstance(value, str):
        hint = "" if value is None else f"; pass str({name}) if that is the id you mean"
        raise InvalidArgument(f"{name} must be a string, got {type(value).__name__}{hint}")
    text = str.__str__(value)
    if not text.strip():
        raise InvalidArgument(f"{name} is {text!r}: an id must hold at least one visible character")
    if found := _UNPRINTABLE.search(text):
        kind = "half of a surrogate pair" if found[0] >= "\ud800" else "a control character"
        raise InvalidArgument(
            f"{name} holds {kind} (U+{ord(found[0]):04X}) at position {found.start()}; remove it from the id"
        )
    # A character takes at least one byte, so a long text needs no encoding to be refused.
    size = len(text) if len(text) > MAX_ID_BYTES else len(text.encode())
    if size > MAX_ID_BYTES:
        raise InvalidArgument(
            f"{name} takes {size} bytes or more, at most {MAX_ID_BYTES} are allowed; use a hash of it"
        )
    return text


def is_uuid(text: str) -> bool:
    """Whether `turn_uuid` takes the id as it is: a UUID in the form 8-4-4-4-12."""
    return _CANONICAL_UUID.fullmatch(text) is not None


def turn_uuid(given: str | uuid.UUID | None, tenant_id: str, session_id: str) -> uuid.UUID:
    """Return the UUID under which a turn is stored.

    None: a new one. A UUID, or a string in the form 8-4-4-4-12: itself. Any other id (`run-17`,
    `msg_01AbC`): the same UUID each time it is given for this session, so a retried write stores once and
    equal ids of two sessions stay apart.

    Raises: InvalidArgument as `check_id` does.
    """
    if given is None:
        return new_id()
    if isinstance(given, uuid.UUID):
        return given
    text = check_id(given, "turn_id")
    if is_uuid(text):
        return uuid.UUID(text)
    # Ids hold no control characters, so the joint is unambiguous.
    return uuid.uuid5(_TURN_NAMESPACE, "\x00".join((tenant_id, session_id, text)))


def user_key(user_id: str) -> int:
    """Return the user's key in the postings: a signed 64-bit hash, equal on every machine and version."""
    return int.from_bytes(blake2b(user_id.encode(), digest_size=8).digest(), "big", signed=True)
