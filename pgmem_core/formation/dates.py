"""Days that people name in English ("next Monday", "in two weeks", "26 February at 11:30"), seen from a day. Pure.

Only what has one meaning: "3/4/2026", "next Friday" said on a Wednesday, and "next week" have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from pgmem_core.types import Turn

__all__ = ["DAY", "TIMEZONE_KEY", "Moment", "local_time", "resolve"]

# Turn metadata: the speaker's zone, "Europe/Lisbon" or "-08:00". Stored times are UTC and have lost it.
TIMEZONE_KEY = "timezone"
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d{2})?", re.I)

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_WORDS = "a an one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = dict(zip(_WORDS.split(), (1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), strict=True))

_DAY = "|".join(_DAYS)
_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS)
_NUMBER = r"\d{1,3}|" + "|".join(_NUMBERS)
# One pattern for all, to be put into others; its groups are read by name.
DAY = rf"""(?:
    (?P<iso>\d{{4}}-\d\d-\d\d)
  | (?P<near>today|tonight|tomorrow|the\ day\ after\ tomorrow|yesterday)(?:\ (?:morning|afternoon|evening|night))?
  | in\ (?P<count>{_NUMBER})\ (?P<unit>days?|weeks?)(?:'\ time)?
  | (?:on\ |this\ |(?P<next>next\ ))?(?:(?P<weekday>{_DAY}),?\ )?(?:the\ )?
    (?: (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\ (?:of\ )?(?P<month>{_MONTH})
      | (?P<month2>{_MONTH})\ (?P<day2>\d{{1,2}})(?:st|nd|rd|th)? )
    (?:,?\ (?P<year>\d{{4}}))?
  | (?:on\ |this\ |(?P<coming>next\ ))?(?P<only>{_DAY})(?:\ (?:morning|afternoon|evening))?
)(?:,?\ at\ (?P<hour>\d{{1,2}})(?:[:.](?P<minute>\d\d))?\ ?(?P<half>am|pm)?)?\b"""
_WHOLE = re.compile(DAY, re.IGNORECASE | re.VERBOSE)


@dataclass(frozen=True, slots=True)
class Moment:
    """A day, and a time of day if one was said, in the speaker's zone."""

    day: date
    at: time | None = None

    def __str__(self) -> str:
        return f"{self.day:%Y-%m-%d}" + (f" at {self.at:%H:%M}" if self.at else "")


def local_time(turn: Turn) -> datetime:
    """Return when the turn was said, on the speaker's own clock.

    That is `created_at` with its own offset; where it is UTC, the turn's `utc_offset`, or `metadata["timezone"]`
    ("Europe/Lisbon") or `metadata["utc_offset"]` ("-08:00") is used if it has one. "Tomorrow" at half past eleven in
    the evening is not the same day in both.
    """
    said = turn.created_at
    if said.utcoffset():
        return said
    for name in (turn.metadata.get(TIMEZONE_KEY), turn.utc_offset, turn.metadata.get("utc_offset")):
        zone = _zone(name)
        if zone is not None:
            try:
                return said.astimezone(zone)
            except OverflowError:
                return said
    return said


def _zone(name: object) -> tzinfo | None:
    if not isinstance(name, str) or not name.strip():
        return None
    try:
        if found := _OFFSET.fullmatch(name.strip()):
            offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
            return timezone(-offset if found[1] == "-" else offset)
        return ZoneInfo(name.strip())
    except (ValueError, OSError, KeyError):
        return None


def resolve(words: str, today: date) -> Moment | None:
    """Return the day that the words mean when said today, or None if they mean none or more than one."""
    found = _WHOLE.fullmatch(words.strip())
    if found is None:
        return None
    try:
        day = _day({name: value.lower() for name, value in found.groupdict().items() if value}, today)
        return None if day is None else Moment(day, _time(found))
    except (ValueError, OverflowError):  # 31 February, 25:00
        return None


def _day(said: dict[str, str], today: date) -> date | None:
    if "iso" in said:
        return date.fromisoformat(said["iso"])
    if "near" in said:
        ahead = {"tomorrow": 1, "the day after tomorrow": 2, "yesterday": -1}.get(said["near"], 0)
        return today + timedelta(days=ahead)
    if "count" in said:
        number = _NUMBERS.get(said["count"]) or int(said["count"])
        return today + timedelta(days=number * (7 if said["unit"].startswith("week") else 1))
    if "only" in said:
        ahead = (_DAYS.index(said["only"]) - today.weekday()) % 7
        # Said on the day itself, or "next Friday" with a Friday still to come this week: one of two.
        if ahead == 0 or ("coming" in said and today.weekday() + ahead < 7):
            return None
        return today + timedelta(days=ahead)
    return None if "next" in said else _dated(said, today)


def _dated(said: dict[str, str], today: date) -> date | None:
    month = 1 + next(n for n, name in enumerate(_MONTHS) if name.startswith(said.get("month") or said["month2"]))
    number = int(said.get("day") or said["day2"])
    if "year" in said:
        day = date(int(said["year"]), month, number)
    else:
        day = date(today.year, month, number)
        if day < today - timedelta(days=90):  # "3 January", said in December
            day = date(today.year + 1, month, number)
    wanted = said.get("weekday")
    return None if wanted is not None and _DAYS[day.weekday()] != wanted else day


def _time(found: re.Match[str]) -> time | None:
    if found["hour"] is None:
        return None
    hour, minute, half = int(found["hour"]), int(found["minute"] or 0), (found["half"] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(f"{hour} {half} is no time")
        hour = hour % 12 + (12 if half == "pm" else 0)
    elif found["minute"] is None:  # "at 3" is one of two
        return None
    return time(hour, minute)
