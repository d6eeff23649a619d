"""Family, pets, appointments, deadlines, constraints and corrections. Readers of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

from pgmem_core.facts import FactDraft
from pgmem_core.folding import fold
from pgmem_core.formation.dates import local_time, resolve
from pgmem_core.formation.grammar import WORD, Reader, Seen, alike, reads, stated

__all__: list[str] = []


# -- family and pets -----------------------------------------------------------------------------------------------

_RELATIVES = (("has_pet", "PET"), ("has_child", "CHILD"), ("has_sibling", "SIBLING"), ("spouse", "SPOUSE"))


def _relative(predicate: str) -> Reader:
    def reader(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
        name = found.groupdict().get("name")
        kind = found["kind"].lower()
        yield stated(predicate, f"{name} ({kind})" if name else kind, seen)

    return reader


def _no_relative(predicate: str) -> Reader:
    def reader(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
        kind = found["kind"].lower()
        held = [fact for fact in seen.known if fact.predicate == predicate and _is_kind(fact.value, kind)]
        said = [one for one in seen.drafts if one.predicate == predicate and _is_kind(one.value, kind)]
        for value in dict.fromkeys([*(fact.value for fact in held), *(one.value for one in said), kind]):
            yield FactDraft(predicate, value, action="retract")

    return reader


def _is_kind(value: object, kind: str) -> bool:
    return isinstance(value, str) and (value.endswith(f"({kind})") or value == kind)


for _predicate, _part in _RELATIVES:
    reads(
        rf"{{HAVE}}\ an?\ (?:[a-z]+\ )?{{{_part}}}(?:,?\ (?i:named|called)\ (?P<name>{WORD})){{REST}}",
        rf"(?i:my)\ (?:(?i:older|younger|little|big|elder|new)\ )?{{{_part}}}(?i:'s\ name\ is|\ is\ (?:called|"
        rf"named))\ (?P<name>{WORD}){{REST}}",
        rf"(?i:my)\ (?:(?i:older|younger|little|big|elder|new)\ )?{{{_part}}},?\ (?P<name>[A-Z][a-z]+)(?:,?\ "
        rf"(?i:is|was|has|likes|loves|just|and)\ .*|,\ .*)?",
    )(_relative(_predicate))
    reads(
        rf"{{HAVE}}\ (?i:no)\ {{{_part}}}s?{{REST}}",
        rf"{{I}}\ {{NOT}}\ (?i:have)\ (?i:an?|any)\ {{{_part}}}s?{{REST}}",
    )(_no_relative(_predicate))
reads(r"{HAVE}\ an?\ (?:[a-z]+\ )?{PET}{REST}")(_relative("has_pet"))


# -- dates ---------------------------------------------------------------------------------------------------------

_WITH = r"(?:\ (?i:with)\ (?P<who>(?i:my\ )?[\w'.]+(?:\ [A-Z][\w'.]*){0,2}))?"


@reads(
    rf"(?:{{HAVE}}|(?i:I\ booked|I've\ booked|there's|there\ is))\ (?:an?|my|the)\ (?P<what>(?:[\w'-]+\ "
    rf"){{0,3}}?{{EVENT}}){_WITH}\ (?P<when>{{DAY}})(?:,?\ .*)?",
    rf"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){{0,3}}?{{EVENT}}){_WITH}\ (?i:is|is\ on)(?P<moved>\ now)?\ "
    rf"(?P<when>{{DAY}})(?:,?\ .*)?",
    rf"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){{0,3}}?{{EVENT}}){_WITH}\ (?P<moved>(?i:has\ been|was|got|is)\ "
    rf"(?i:moved|rescheduled|postponed|pushed\ back)\ to)\ (?P<when>{{DAY}})(?:,?\ .*)?",
    r"(?P<what>(?i:dentist|doctor|final\ round|job\ interview|interview|exam)(?i:\ appointment)?)(?i:\ is|:)?\ "
    r"(?P<when>{DAY})(?:,?\ .*)?",
    r"{I}(?:'ve|\ have)\ (?i:signed\ up\ for|registered\ for|entered)\ (?:an?|the)\ (?P<what>[\w' -]{3,40}?)\ "
    r"(?P<when>{DAY})(?:,?\ .*|\ and\ .*)?",
    r"{I}(?:'m|\ am)\ (?i:flying|travelling|traveling)\ to\ (?P<place>{PLACE})\ (?P<when>{DAY})(?:,?\ .*)?",
)
def _appointment(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    what = groups.get("what") or f"trip to {groups['place']}"
    what = what.strip().removesuffix(" on") + (f" with {groups['who']}" if groups.get("who") else "")
    yield from _dated("appointment", what, found["when"], seen, moved=bool(groups.get("moved")))


@reads(
    r"(?i:the|my|our)\ (?:(?P<what>(?:[\w'-]+\ ){0,3}?))(?i:deadline)(?:\ (?i:for)\ (?P<what2>(?:the\ |my\ "
    r")?[\w' -]{2,40}?))?\ (?i:is)(?P<moved>\ now)?\ (?P<when>{DAY})(?:,?\ .*)?",
    r"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){1,4}?)(?i:is\ due|are\ due|has\ to\ be\ done|must\ be\ done)\ (?:by\ "
    r")?(?P<when>{DAY})(?:,?\ .*)?",
)
def _deadline(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    what = (groups.get("what2") or groups.get("what") or "deadline").strip()
    yield from _dated("deadline", what, found["when"], seen, moved=bool(groups.get("moved")))


def _dated(predicate: str, what: str, when: str, seen: Seen, *, moved: bool) -> Iterator[FactDraft]:
    """Yield the date, valid until its day is over in the speaker's zone, and the end of the one it replaces."""
    said = local_time(seen.turn)
    moment = resolve(when, said.date())
    if moment is None or moment.day < said.date():
        return
    over = datetime.combine(moment.day + timedelta(days=1), time(), tzinfo=said.tzinfo).astimezone(UTC)
    made = FactDraft(predicate, f"{what} on {moment}", valid_to=over)
    if moved:
        start = fold(f"{what} on ")
        held: list[Any] = [fact.value for fact in seen.known if fact.predicate == predicate]
        held += [one.value for one in seen.drafts if one.predicate == predicate and one.action == "assert"]
        for value in dict.fromkeys(value for value in held if isinstance(value, str)):
            if fold(value).startswith(start) and fold(value) != fold(made.value):
                yield FactDraft(predicate, value, action="end")
    yield made


@reads(
    r"(?P<value>(?:{I}\ )(?i:can't|cannot|can\ not|can\ only)\ (?i:work|meet|travel|fly|drive|attend|take\ calls|"
    r"do\ calls|start)\ [\w\ :.'-]{0,40}?(?i:before|after|until|between|on|at)\ [\w\ :.'-]{2,30})"
)
def _constraint(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    value = re.sub(r"(?i)^I\ ", "", found["value"])
    # "on Friday" alone is about one Friday, which is over soon.
    if not re.search(rf"(?ix)\b(?:today|tomorrow|tonight|this|next|on\ (?:{'|'.join(_WEEKDAYS)}))\b", value):
        yield FactDraft("constraint", value)


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


# -- corrections ---------------------------------------------------------------------------------------------------

_MEANT = r"(?P<said>(?i:I\ meant)(?i:\ to\ say)?(?i:\ that)?(?i:\ I'm|\ I\ am|\ it's)?)"
_NO = re.compile(r"(?:no|nope|sorry|oops|whoops|wait)\b", re.IGNORECASE)


@reads(
    rf"(?:{_MEANT}|(?i:it's|it\ is|make\ that))\ (?P<value>{{VALUE}}),?\ (?i:not)\ (?P<not>{{VALUE}}){{SORRY}}",
    r"(?i:it's|it\ is)\ (?i:not)\ (?P<not>{VALUE}),?\ (?i:but|it's|it\ is)\ (?P<value>{VALUE}){SORRY}",
    r"(?i:not)\ (?P<not>{VALUE}),?\ (?i:but)\ (?P<value>{VALUE}){SORRY}",
    r"(?P<value>{PLACE}),\ (?i:not)\ (?P<not>{PLACE}){SORRY}",
)
def _meant(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    """Only where exactly one predicate has the wrong value: else nobody knows what is meant."""
    wrong = fold(found["not"])
    places = {predicate: value for predicate, value in seen.held() if fold(str(value)) == wrong}
    if len(places) != 1:
        return
    [(predicate, old)] = places.items()
    new = alike(predicate, old, found["value"])
    # "It's vegetarian, not vegan" may be a dish; "I meant …", "No, it's …" and names are about what was said.
    sure = found.groupdict().get("said") or seen.clause.correcting or _NO.match(seen.clause.quote)
    if new is not None and (sure or found["value"][0].isupper()):
        yield FactDraft(predicate, new, action="correct", replaces=old)
