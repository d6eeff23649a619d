"""An extractor without a model: plain English statements in the first person. Precision before recall.

It reads `Name`, places and employers only where they are capitalised, drops any value it is not sure where it ends,
and says nothing of what it does not recognise: text in other languages gives no facts. For a conversation of normal
talk expect it to find a fifth of what a model finds, and little that is wrong. It needs no network and no key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from pgmem_core.facts import Action, Fact, FactDraft
from pgmem_core.folding import fold
from pgmem_core.formation.dates import DAY, local_time, resolve
from pgmem_core.formation.evidence import authority_of, own_words
from pgmem_core.formation.phrases import MASK, Clause, clauses
from pgmem_core.predicates import single_valued
from pgmem_core.types import Authority, Turn

__all__ = ["PatternExtractor"]

# A pattern is sure of a sentence's form, not of its sense.
_CONFIDENCE = 0.8


class PatternExtractor:
    """Implements `Extractor` with patterns. Stateless; `extract` takes about 0.1 ms a turn."""

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        """Return drafts for the user's own turns, each with a verbatim quote and the turn's id."""
        drafts: list[FactDraft] = []
        for turn in turns:
            if turn.role != "user" or authority_of(turn) is not Authority.user:
                continue
            for clause in clauses(own_words(turn)):
                seen = _Seen(clause, turn, known, drafts)
                for draft in _read(seen):
                    made = replace(draft, turn_id=turn.id, quote=clause.quote, confidence=_CONFIDENCE)
                    if made not in drafts:
                        drafts.append(made)
        return drafts

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        """The same, awaited; it takes no time worth a thread."""
        return self.extract(turns, known)


@dataclass(frozen=True, slots=True)
class _Seen:
    clause: Clause
    turn: Turn
    known: Sequence[Fact]
    drafts: Sequence[FactDraft]


_Reader = Callable[[re.Match[str], _Seen], Iterator[FactDraft]]
_READERS: list[tuple[re.Pattern[str], _Reader]] = []


def _reads(*patterns: str) -> Callable[[_Reader], _Reader]:
    def register(reader: _Reader) -> _Reader:
        # Case counts in names only, so the words around them are written with (?i:…).
        _READERS.extend((re.compile(pattern.format_map(_PARTS), re.VERBOSE), reader) for pattern in patterns)
        return reader

    return register


def _read(seen: _Seen) -> Iterator[FactDraft]:
    """Yield the drafts of the first pattern that matches the whole clause."""
    for pattern, reader in _READERS:
        if found := pattern.fullmatch(seen.clause.text):
            yield from (draft for draft in reader(found, seen) if MASK not in str(draft.value))
            return


class _Parts(dict[str, str]):
    """What `{name}` in a pattern stands for; everything else in braces is left as it is."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


# A capitalised name of up to five words: "Rio de Janeiro", "O'Neil & Sons".
_WORD = r"(?:[A-Z][\w'.&+-]*|[A-Z])"
_NAME = rf"{_WORD}(?:\ (?:{_WORD}|of|de|da|do|del|la|le|van|von|der|the|and(?=\ [A-Z])|&|\d+)){{0,4}}"
# What may follow a value: an addition, a reason, a time. It is dropped.
_REST = (
    r"(?:,\ .*|\ (?i:now|nowadays|today|these\ days|at\ the\ moment|right\ now|currently|again|too|as\ well|instead|so\ far|"
    r"though|still|actually|already|please|a\ lot|very\ much|so\ much)(?:\ .*)?"
    r"|\ (?i:with|because|since|for|when|while|which|who|where|but|so|after|before|until|as|in\ the|in\ a|last|this|by|near|"
    r"and\ (?:I|my|have|am|work|live|it|we))\ .*)?"
)
_PARTS = _Parts(
    NAME=_NAME,
    PLACE=_NAME + rf"(?:,\ {_NAME})?",
    REST=_REST,
    I=r"(?i:I)",
    AM=r"(?i:I'm|I\ am)(?:\ (?i:really|still|also|just|now|currently|actually))?",
    HAVE=r"(?i:I\ have|I've\ got|I've|I\ got)",
    OFTEN=r"(?:(?i:really|absolutely|also|still|just|do|always|personally|quite|truly|usually|mostly|now|currently)\ )*",
    NOT=r"(?i:don't|do\ not|didn't|did\ not)",
    MORE=r"(?:\ (?i:any\ ?more|any\ longer))",
    NEVER=r"(?i:never|have\ never|'ve\ never)",
    DIET=r"(?i:vegan|vegetarian|pescatarian|pescetarian|flexitarian|omnivore|carnivore|keto|halal|kosher)",
    LANGUAGE=(
        r"(?:English|German|French|Spanish|Portuguese|Italian|Dutch|Danish|Swedish|Norwegian|Finnish|Polish|Czech|Russian|"
        r"Ukrainian|Greek|Turkish|Arabic|Hebrew|Persian|Farsi|Hindi|Urdu|Bengali|Tamil|Mandarin|Cantonese|Chinese|Japanese|"
        r"Korean|Vietnamese|Thai|Indonesian|Malay|Swahili|Welsh|Irish|Gaelic|Catalan|Basque|Hungarian|Romanian|Serbian|"
        r"Croatian|Bulgarian|Slovak|Slovenian|Estonian|Latvian|Lithuanian|Icelandic|Esperanto|Latin|Afrikaans|Zulu)"
    ),
    THING=r"(?P<thing>[^,;:()]{{2,60}}?)".replace("{{", "{").replace("}}", "}"),
    JOB=(
        r"(?:(?:[a-z][\w/-]*|[A-Z]{2,4})\ ){0,3}(?:engineer|developer|programmer|designer|architect|teacher|nurse|doctor|surgeon|dentist|"
        r"lawyer|solicitor|accountant|analyst|scientist|researcher|biologist|chemist|physicist|professor|lecturer|student|"
        r"writer|author|journalist|editor|translator|chef|cook|baker|carpenter|electrician|plumber|mechanic|pilot|driver|"
        r"farmer|manager|consultant|librarian|photographer|musician|painter|artist|actor|psychologist|therapist|paramedic|"
        r"firefighter|pharmacist|vet|veterinarian|economist|statistician|administrator|technician|bookkeeper|clerk|tutor|"
        r"freelancer|barista|gardener|builder|salesperson|recruiter|planner|director|founder)"
    ),
    PET=r"(?P<kind>dog|cat|rabbit|hamster|parrot|horse|pony|tortoise|guinea\ pig|puppy|kitten|snake|goldfish|budgie)",
    CHILD=r"(?P<kind>son|daughter|child|baby)",
    SIBLING=r"(?P<kind>sister|brother|twin\ sister|twin\ brother|sibling)",
    SPOUSE=r"(?P<kind>wife|husband|spouse)",
    EVENT=(
        r"(?:interview|meeting|appointment|exam|flight|call|presentation|wedding|surgery|operation|check-?up|dentist|viewing|"
        r"hearing|conference|marathon|race|concert|birthday\ party|final\ round|round|test|lesson|class|trip)"
    ),
    DAY=DAY,
)


# -- who -----------------------------------------------------------------------------------------------------------


@_reads(
    r"(?i:my\ (?:full\ |first\ )?name\ is|my\ name's|I'm\ called|I\ am\ called|I\ go\ by|call\ me|you\ can\ call\ me)\ (?P<value>{NAME}){REST}"
)
def _name(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("name", found["value"], seen)


@_reads(
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|lived|living|based|reside|residing)\ (?i:not\ )(?:in|at)\ (?P<not>{PLACE}),?\ (?i:but)\ (?:in\ |at\ )?(?P<value>{PLACE}){REST}",
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|living|based|reside|residing)\ (?:in|at)\ (?P<value>{PLACE}),\ (?i:not)\ (?:in\ |at\ )?(?P<not>{PLACE}){REST}",
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|living|based|reside|residing)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"(?P<moved>{I}(?:'ve|\ have)?\ (?:(?i:just|recently|now|finally)\ )?(?i:moved|relocated)\ (?i:back\ )?(?:here\ )?)to\ (?P<value>{PLACE}){REST}",
)
def _lives(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    yield _stated("lives_in", found["value"], seen, wrong=groups.get("not"), changed="moved" in groups)


@_reads(
    r"{I}\ (?i:no\ longer\ live)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"{I}\ {NOT}\ (?i:live)\ (?:in|at)\ (?P<value>{PLACE}){MORE}{REST}",
    r"{I}\ (?i:used\ to\ live)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"{I}(?:'ve|\ have)?\ (?i:moved\ away\ from|moved\ out\ of)\ (?P<value>{PLACE}){REST}",
)
def _left_place(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("lives_in", found["value"], action="end")


@_reads(r"{I}\ ?{NEVER}\ (?i:lived)\ (?:in|at)\ (?P<value>{PLACE}){REST}")
def _never_lived(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("lives_in", found["value"], action="retract")


@_reads(
    r"(?:{AM}\ (?i:originally\ )?|{I}\ (?i:come|came)\ (?i:originally\ )?)from\ (?P<value>{PLACE})(?i:\ originally)?{REST}"
)
def _from(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("from", found["value"], seen)


@_reads(r"{I}\ (?i:was\ born)\ in\ (?P<value>{PLACE}){REST}")
def _born_in(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("birthplace", found["value"], seen)


@_reads(
    r"(?i:my\ birthday\ is|my\ birthday's|I\ was\ born)\ (?:on\ )?(?:the\ )?(?P<value>\d{1,2}(?:st|nd|rd|th)?\ (?:of\ )?[A-Z][a-z]+(?:,?\ \d{4})?|[A-Z][a-z]+\ \d{1,2}(?:st|nd|rd|th)?(?:,?\ \d{4})?|\d{4}-\d\d-\d\d)"
)
def _birthday(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("birthday", found["value"], seen)


@_reads(r"{AM}\ (?P<value>\d{1,3})\ (?i:years\ old|y/o|yo)(?:,?\ .*)?")
def _age(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("age", int(found["value"]), seen)


@_reads(
    r"(?i:my\ time\ ?zone\ is)\ (?P<value>[A-Z][\w/+:-]*){REST}",
    r"{AM}\ in\ the\ (?P<value>[A-Z]\w+|[A-Z][a-z]+/[A-Z]\w+)\ (?i:time\ ?zone){REST}",
)
def _timezone(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("timezone", found["value"], seen)


# -- work ----------------------------------------------------------------------------------------------------------


@_reads(
    r"{AM}\ (?:an?|the)\ (?P<job>{JOB})(?:\ (?:at|for|with)\ (?P<at>{NAME})(?:\ in\ {PLACE})?)?{REST}",
    r"{I}\ {OFTEN}(?i:work)\ as\ an?\ (?P<job>{JOB})(?:\ (?:at|for|with)\ (?P<at>{NAME})(?:\ in\ {PLACE})?)?{REST}",
    r"(?:{I}\ {OFTEN}(?i:work)|{AM}\ (?i:working|employed))\ (?:at|for)\ (?P<at>{NAME})(?:\ in\ {PLACE})?(?:\ as\ an?\ (?P<job>{JOB}))?{REST}",
)
def _works(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    if found["job"]:
        yield _stated("occupation", found["job"], seen)
    if found["at"]:
        yield _stated("works_at", found["at"], seen)


@_reads(
    r"{I}(?:'ve|\ have)?\ (?:(?i:just|recently)\ )?(?i:joined|started\ (?:working\ )?at|started\ (?:a\ new|a|my\ new)\ job\ at)\ (?P<at>{NAME})(?:\ as\ an?\ (?P<job>{JOB}))?{REST}"
)
def _joined(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    if found["job"]:
        yield _stated("occupation", found["job"], seen, changed=True)
    yield _stated("works_at", found["at"], seen, changed=True)


@_reads(
    r"{I}\ (?i:no\ longer\ work)\ (?:at|for)\ (?P<value>{NAME}){REST}",
    r"{I}\ {NOT}\ (?i:work)\ (?:at|for)\ (?P<value>{NAME}){MORE}{REST}",
    r"{I}\ (?i:used\ to\ work)\ (?:at|for)\ (?P<value>{NAME}){REST}",
    r"{I}(?:'ve|\ have)?\ (?:(?i:just|recently)\ )?(?i:quit|left)\ (?i:my\ job\ at)\ (?P<value>{NAME}){REST}",
)
def _left_work(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("works_at", found["value"], action="end")


@_reads(
    r".*?(?i:my)\ (?P<what>notice\ period|salary\ expectation|preferred\ language|native\ language|blood\ type|favou?rite\ [a-z]+(?:\ [a-z]+)?)\ (?i:is|was)(?i:\ now)?\ (?P<value>(?!(?i:not|the|that|so|to|when|how|what|very|too)\b)[^,;:()]{1,50}?)(?:\ (?i:now)?\ ?(?i:instead\ of|rather\ than)\ .*|{REST})"
)
def _attribute(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    what = found["what"].lower().replace("favourite", "favorite").replace(" ", "_")
    if re.search(r"(?i)\bmy\ \w+\ is\ not\b|\bwas\b", found[0]):
        return
    yield _stated(what, found["value"].removesuffix(" now"), seen)


# -- likes, food, languages ----------------------------------------------------------------------------------------

_NOT_A_THING = re.compile(
    r"(?i)(?:it|that|this|these|those|them|him|her|you|your|his|their|its|how|what|when|where|who|why|which|one|some|being|"
    r"the\ way|the\ idea|the\ (?:first|second|last|third)|to\ (?:know|see|hear|think|say|ask|admit|break|be|tell|have|thank)|"
    r"both|all|any|anything|everything|nothing|something|each|every|either|neither|none|most|much|more|like|if|me|my|us|our)\b",
    re.VERBOSE,
)
_SPLIT = re.compile(r",\s*(?:and\s+)?|\s+and\s+(?!the\b)")


@_reads(
    r"{I}\ (?i:no\ longer)\ (?i:like|love|enjoy)\ {THING}{REST}",
    r"{I}\ {NOT}\ (?i:like|love|enjoy)\ {THING}{MORE}{REST}",
    r"{I}\ (?i:used\ to\ (?:like|love|enjoy))\ {THING}{REST}",
)
def _no_longer_likes(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield from _things("likes", found["thing"], action="end")


@_reads(
    r"{I}\ {OFTEN}(?:{NOT}\ {OFTEN}(?i:like|enjoy)|(?i:hate|dislike|detest|loathe|can't\ stand|cannot\ stand))\ {THING}{REST}",
)
def _dislikes(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield from _things("dislikes", found["thing"])


@_reads(
    r"{I}\ {OFTEN}(?i:like|love|enjoy|adore)\ {THING}{REST}",
    r"{AM}\ (?i:a\ (?:big|huge)\ fan\ of|very\ fond\ of|fond\ of)\ {THING}{REST}",
)
def _likes(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield from _things("likes", found["thing"])


@_reads(r"{I}\ {OFTEN}(?i:prefer)\ {THING}{REST}")
def _prefers(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    if not _NOT_A_THING.match(found["thing"]):
        yield FactDraft("prefers", found["thing"])


@_reads(
    r"{AM}\ (?i:a\ |an\ )?(?:(?i:strict|lifelong)\ )?(?P<value>{DIET}),?\ (?i:not)\ (?i:a\ |an\ )?(?P<not>{DIET}){REST}",
    r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<not>{DIET}),?\ (?i:but|I'm)\ (?i:a\ |an\ )?(?P<value>{DIET}){REST}",
    r"{AM}\ (?i:a\ |an\ )?(?:(?i:strict|lifelong)\ )?(?P<value>{DIET}){REST}",
    r"{I}(?:'ve|\ have)\ (?i:gone|become|turned)\ (?P<value>{DIET}){REST}",
)
def _diet(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield _stated("diet", found["value"], seen, wrong=found.groupdict().get("not"))


@_reads(r"{AM}\ (?i:no\ longer)\ (?i:a\ |an\ )?(?P<value>{DIET}){REST}", r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<value>{DIET}){MORE}{REST}")
def _no_longer_diet(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("diet", found["value"], action="end")


@_reads(r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<value>{DIET})", r"{I}\ (?i:was\ never|have\ never\ been)\ (?i:a\ |an\ )?(?P<value>{DIET})")
def _not_diet(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("diet", found["value"], action="retract")


@_reads(r"{AM}\ (?:(?i:severely|very|highly|mildly|deathly)\ )?(?i:allergic)\ to\ (?P<things>[^;:()]{2,80}?)(?:\ (?i:so|but|because|which)\ .*)?")
def _allergic(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    for thing in _SPLIT.split(found["things"]):
        if not re.match(r"(?i)so\b|but\b|please\b", thing):
            yield from _things("allergic_to", thing)


@_reads(r"{AM}\ (?i:not)\ (?i:actually\ )?(?i:allergic)\ to\ {THING}{MORE}?{REST}")
def _not_allergic(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    ended = re.search(r"(?i)any\ ?(?:more|longer)", found[0])
    yield from _things("allergic_to", found["thing"], action="end" if ended else "retract")


@_reads(r"{I}\ (?i:no\ longer)\ (?P<verb>(?i:eat|drink))\ {THING}{REST}", r"{I}\ {NOT}\ (?P<verb>(?i:eat|drink))\ {THING}{MORE}{REST}")
def _no_longer_eats(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield from _things(f"{found['verb'].lower()}s", found["thing"], action="end")
    yield from _things("avoids", found["thing"])


@_reads(
    r"{I}\ (?:(?i:can't|cannot|can\ not|never)|{NOT})\ {OFTEN}(?i:eat|drink)\ {THING}{REST}",
    r"{I}(?:'ve|\ have)\ (?i:also\ )?(?i:given\ up|stopped\ eating|stopped\ drinking)\ {THING}{REST}",
)
def _avoids(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    if not re.match(r"(?i)on\b|trying\b|my\b", found["thing"]):
        yield from _things("avoids", found["thing"])


@_reads(r"{I}\ (?:(?i:do|also|still)\ )*(?P<verb>(?i:eat|drink))\ {THING}{REST}")
def _eats(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    if not re.match(r"(?i)at\b|in\b|out\b|a\b|before\b|after\b|late\b|too\b", found["thing"]):
        yield from _things(f"{found['verb'].lower()}s", found["thing"])


@_reads(
    r"(?:{I}\ {OFTEN}(?i:speak)|{AM}\ (?i:fluent\ in))\ (?:(?i:fluent|some|native)\ )?(?P<langs>{LANGUAGE}(?:(?:,\ (?:and\ )?|\ and\ )(?:(?i:some)\ )?{LANGUAGE})*)(?:\ (?i:fluently|natively))?{REST}"
)
def _speaks(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    for language in _SPLIT.split(found["langs"]):
        yield FactDraft("speaks", language.removeprefix("some "))


@_reads(r"{I}\ {NOT}\ (?i:speak)\ (?P<value>{LANGUAGE}){REST}")
def _speaks_not(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    yield FactDraft("speaks", found["value"], action="retract")


# -- family and pets -----------------------------------------------------------------------------------------------

_RELATIVES = (("has_pet", "PET"), ("has_child", "CHILD"), ("has_sibling", "SIBLING"), ("spouse", "SPOUSE"))


def _relative(predicate: str) -> _Reader:
    def reader(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
        name = found.groupdict().get("name")
        kind = found["kind"].lower()
        yield _stated(predicate, f"{name} ({kind})" if name else kind, seen)

    return reader


def _no_relative(predicate: str) -> _Reader:
    def reader(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
        kind = found["kind"].lower()
        held = [fact for fact in seen.known if fact.predicate == predicate and _is_kind(fact.value, kind)]
        said = [one for one in seen.drafts if one.predicate == predicate and _is_kind(one.value, kind)]
        for value in dict.fromkeys([*(fact.value for fact in held), *(one.value for one in said), kind]):
            yield FactDraft(predicate, value, action="retract")

    return reader


def _is_kind(value: object, kind: str) -> bool:
    return isinstance(value, str) and (value.endswith(f"({kind})") or value == kind)


for _predicate, _part in _RELATIVES:
    _reads(
        rf"{{HAVE}}\ an?\ (?:[a-z]+\ )?{{{_part}}}(?:,?\ (?i:named|called)\ (?P<name>{_WORD})){{REST}}",
        rf"(?i:my)\ (?:(?i:older|younger|little|big|elder|new)\ )?{{{_part}}}(?i:'s\ name\ is|\ is\ (?:called|named))\ (?P<name>{_WORD}){{REST}}",
        rf"(?i:my)\ (?:(?i:older|younger|little|big|elder|new)\ )?{{{_part}}},?\ (?P<name>[A-Z][a-z]+)(?:,?\ (?i:is|was|has|likes|loves|just|and)\ .*|,\ .*)?",
    )(_relative(_predicate))
    _reads(
        rf"{{HAVE}}\ (?i:no)\ {{{_part}}}s?{{REST}}",
        rf"{{I}}\ {{NOT}}\ (?i:have)\ (?i:an?|any)\ {{{_part}}}s?{{REST}}",
    )(_no_relative(_predicate))
_reads(r"{HAVE}\ an?\ (?:[a-z]+\ )?{PET}{REST}")(_relative("has_pet"))


# -- dates ---------------------------------------------------------------------------------------------------------

_WITH = r"(?:\ (?i:with)\ (?P<who>(?i:my\ )?[\w'.]+(?:\ [A-Z][\w'.]*){0,2}))?"


@_reads(
    rf"(?:{{HAVE}}|(?i:I\ booked|I've\ booked|there's|there\ is))\ (?:an?|my|the)\ (?P<what>(?:[\w'-]+\ ){{0,3}}?{{EVENT}}){_WITH}\ (?P<when>{{DAY}})(?:,?\ .*)?",
    rf"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){{0,3}}?{{EVENT}}){_WITH}\ (?i:is|is\ on)(?P<moved>\ now)?\ (?P<when>{{DAY}})(?:,?\ .*)?",
    rf"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){{0,3}}?{{EVENT}}){_WITH}\ (?P<moved>(?i:has\ been|was|got|is)\ (?i:moved|rescheduled|postponed|pushed\ back)\ to)\ (?P<when>{{DAY}})(?:,?\ .*)?",
    r"(?P<what>(?i:dentist|doctor|final\ round|job\ interview|interview|exam)(?i:\ appointment)?)(?i:\ is|:)?\ (?P<when>{DAY})(?:,?\ .*)?",
    r"{I}(?:'ve|\ have)\ (?i:signed\ up\ for|registered\ for|entered)\ (?:an?|the)\ (?P<what>[\w' -]{3,40}?)\ (?P<when>{DAY})(?:,?\ .*|\ and\ .*)?",
    r"{I}(?:'m|\ am)\ (?i:flying|travelling|traveling)\ to\ (?P<place>{PLACE})\ (?P<when>{DAY})(?:,?\ .*)?",
)
def _appointment(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    what = groups.get("what") or f"trip to {groups['place']}"
    what = what.strip().removesuffix(" on") + (f" with {groups['who']}" if groups.get("who") else "")
    yield from _dated("appointment", what, found["when"], seen, moved=bool(groups.get("moved")))


@_reads(
    r"(?i:the|my|our)\ (?:(?P<what>(?:[\w'-]+\ ){0,3}?))(?i:deadline)(?:\ (?i:for)\ (?P<what2>(?:the\ |my\ )?[\w' -]{2,40}?))?\ (?i:is)(?P<moved>\ now)?\ (?P<when>{DAY})(?:,?\ .*)?",
    r"(?i:the|my|our)\ (?P<what>(?:[\w'-]+\ ){1,4}?)(?i:is\ due|are\ due|has\ to\ be\ done|must\ be\ done)\ (?:by\ )?(?P<when>{DAY})(?:,?\ .*)?",
)
def _deadline(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    what = (groups.get("what2") or groups.get("what") or "deadline").strip()
    yield from _dated("deadline", what, found["when"], seen, moved=bool(groups.get("moved")))


def _dated(predicate: str, what: str, when: str, seen: _Seen, *, moved: bool) -> Iterator[FactDraft]:
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


@_reads(
    r"(?P<value>(?:{I}\ )(?i:can't|cannot|can\ not|can\ only)\ (?i:work|meet|travel|fly|drive|attend|take\ calls|do\ calls|start)\ [\w\ :.'-]{0,40}?(?i:before|after|until|between|on|at)\ [\w\ :.'-]{2,30})"
)
def _constraint(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    value = re.sub(r"(?i)^I\ ", "", found["value"])
    # "on Friday" alone is about one Friday, which is over soon.
    if not re.search(rf"(?ix)\b(?:today|tomorrow|tonight|this|next|on\ (?:{'|'.join(_WEEKDAYS)}))\b", value):
        yield FactDraft("constraint", value)


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


# -- corrections ---------------------------------------------------------------------------------------------------


@_reads(
    r"(?i:I\ meant|it's|it\ is|make\ that)\ (?P<value>{PLACE}),?\ (?i:not)\ (?P<not>{PLACE})",
    r"(?i:not)\ (?P<not>{PLACE}),?\ (?i:but)\ (?P<value>{PLACE})",
    r"(?P<value>{PLACE}),\ (?i:not)\ (?P<not>{PLACE})",
)
def _meant(found: re.Match[str], seen: _Seen) -> Iterator[FactDraft]:
    """Only where exactly one predicate has the wrong value: else nobody knows what is meant."""
    wrong = fold(found["not"])
    places = {one.predicate for one in seen.drafts if one.action == "assert" and fold(str(one.value)) == wrong}
    places |= {fact.predicate for fact in seen.known if fold(str(fact.value)) == wrong}
    if len(places) == 1:
        yield FactDraft(places.pop(), found["value"], action="correct", replaces=found["not"])


def _stated(predicate: str, value: Any, seen: _Seen, *, wrong: str | None = None, changed: bool = False) -> FactDraft:
    """Return a draft: a correction if it names what was wrong, or opens with "actually" and has one value."""
    if isinstance(value, str):
        value = value.rstrip(" .'")
    if wrong is not None:
        return FactDraft(predicate, value, action="correct", replaces=wrong)
    correct = seen.clause.correcting and single_valued(predicate) and not changed
    return FactDraft(predicate, value, action="correct" if correct else "assert")


def _things(predicate: str, words: str, action: Action = "assert") -> Iterator[FactDraft]:
    thing = words.strip(" .'")
    if thing and not _NOT_A_THING.match(thing) and len(thing.split()) <= 5:
        yield FactDraft(predicate, thing, action=action)
