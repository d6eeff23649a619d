"""What patterns are made of: names, days and endings, the list of readers, and what they yield. Pure.

A reader is a function with patterns over it; the first pattern that matches a whole clause decides. Patterns are
verbose regular expressions in which `{NAME}` stands for the part of that name below, and every space is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgmem_core.facts import Action, Fact, FactDraft
from pgmem_core.formation.dates import DAY
from pgmem_core.formation.phrases import MASK, Clause
from pgmem_core.predicates import single_valued
from pgmem_core.types import Turn

__all__ = [
    "NOT_A_THING",
    "SPLIT",
    "WORD",
    "Reader",
    "Seen",
    "a_name",
    "a_place",
    "alike",
    "read",
    "reads",
    "stated",
    "things",
]


@dataclass(frozen=True, slots=True)
class Seen:
    clause: Clause
    turn: Turn
    known: Sequence[Fact]
    drafts: Sequence[FactDraft]

    def held(self) -> list[tuple[str, Any]]:
        """Return (predicate, value) of what is known of the speaker, and of what was read just before."""
        known = [(fact.predicate, fact.value) for fact in self.known if fact.subject.kind in ("user", "session")]
        return known + [(one.predicate, one.value) for one in self.drafts if one.action in ("assert", "correct")]


Reader = Callable[[re.Match[str], Seen], Iterator[FactDraft]]
READERS: list[tuple[re.Pattern[str], Reader]] = []


def reads(*patterns: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        # Case counts in names only, so the words around them are written with (?i:…).
        for pattern in patterns:
            spelt = _PART.sub(lambda part: _PARTS[part[1]], pattern)
            READERS.append((re.compile(spelt, re.VERBOSE), reader))
        return reader

    return register


def read(seen: Seen) -> Iterator[FactDraft]:
    """Yield the drafts of the first pattern that matches the whole clause."""
    for pattern, reader in READERS:
        if found := pattern.fullmatch(seen.clause.text):
            yield from (draft for draft in reader(found, seen) if MASK not in str(draft.value))
            return


_PART = re.compile(r"\{([A-Z]+)\}")
# A capitalised name of up to five words: "Rio de Janeiro", "O'Neil & Sons".
WORD = r"(?:[A-Z][\w'.&+-]*|[A-Z])"
_NAME = rf"{WORD}(?:\ (?:{WORD}|of|de|da|do|del|la|le|van|von|der|the|and(?=\ [A-Z])|&|\d+)){{0,4}}"
# What may follow a value: an addition, a reason, a time. It is dropped.
_REST = (
    r"(?:,\ .*|\ (?i:now|nowadays|today|these\ days|at\ the\ moment|right\ now|currently|again|once\ again|"
    r"once\ more|too|as\ well|instead|so\ far|"
    r"though|still|actually|already|please|a\ lot|very\ much|so\ much)(?:,?\ .*)?"
    r"|\ (?i:with|because|since|for|when|while|which|who|where|but|so|after|before|until|as|in\ the|in\ a|last|"
    r"this|by|near|"
    r"and\ (?:I|my|have|am|work|live|it|we))\ .*)?"
)
_PARTS = {
    "NAME": _NAME,
    "PLACE": _NAME + rf"(?:,\ {_NAME})?",
    "REST": _REST,
    "I": r"(?i:I)",
    # A value as people correct it: a name, or a few words without a joint.
    "VALUE": rf"(?:{_NAME}(?:,\ {_NAME})?|[\w'+-]+(?:\ [\w'+-]+){{0,3}}?)",
    "SORRY": r"(?:,\ (?i:sorry|my\ mistake|my\ bad|obviously|of\ course))?",
    "AM": r"(?i:I'm|I\ am)(?:\ (?i:really|still|also|just|now|currently|actually))?",
    "HAVE": r"(?i:I\ have|I've\ got|I've|I\ got)",
    "OFTEN": r"(?:(?i:really|absolutely|also|still|just|do|always|quite|truly|usually|mostly|now|currently)\ )*",
    "NOT": r"(?i:don't|do\ not|didn't|did\ not)",
    "MORE": r"(?:\ (?i:any\ ?more|any\ longer))",
    "NEVER": r"(?i:never|have\ never|'ve\ never)",
    "DIET": r"(?i:vegan|vegetarian|pescatarian|pescetarian|flexitarian|omnivore|carnivore|keto|halal|kosher)",
    "LANGUAGE": (
        r"(?:English|German|French|Spanish|Portuguese|Italian|Dutch|Danish|Swedish|Norwegian|Finnish|Polish|Czech|"
        r"Russian|"
        r"Ukrainian|Greek|Turkish|Arabic|Hebrew|Persian|Farsi|Hindi|Urdu|Bengali|Tamil|Mandarin|Cantonese|Chinese|"
        r"Japanese|"
        r"Korean|Vietnamese|Thai|Indonesian|Malay|Swahili|Welsh|Irish|Gaelic|Catalan|Basque|Hungarian|Romanian|Serbian|"
        r"Croatian|Bulgarian|Slovak|Slovenian|Estonian|Latvian|Lithuanian|Icelandic|Esperanto|Latin|Afrikaans|Zulu)"
    ),
    "THING": r"(?P<thing>[^,;:()]{2,60}?)",
    "JOB": (
        r"(?:(?:[a-z][\w/-]*|[A-Z]{2,4})\ ){0,3}(?:engineer|developer|programmer|designer|architect|teacher|nurse|"
        r"doctor|surgeon|dentist|"
        r"lawyer|solicitor|accountant|analyst|scientist|researcher|biologist|chemist|physicist|professor|lecturer|"
        r"student|"
        r"writer|author|journalist|editor|translator|chef|cook|baker|carpenter|electrician|plumber|mechanic|pilot|"
        r"driver|"
        r"farmer|manager|consultant|librarian|photographer|musician|painter|artist|actor|psychologist|therapist|"
        r"paramedic|"
        r"firefighter|pharmacist|vet|veterinarian|economist|statistician|administrator|technician|bookkeeper|clerk|"
        r"tutor|"
        r"freelancer|barista|gardener|builder|salesperson|recruiter|planner|director|founder)"
    ),
    "PET": r"(?P<kind>dog|cat|rabbit|hamster|parrot|horse|pony|tortoise|guinea\ pig|puppy|kitten|snake|goldfish)",
    "CHILD": r"(?P<kind>son|daughter|child|baby)",
    "SIBLING": r"(?P<kind>sister|brother|twin\ sister|twin\ brother|sibling)",
    "SPOUSE": r"(?P<kind>wife|husband|spouse)",
    "EVENT": (
        r"(?:interview|meeting|appointment|exam|flight|call|presentation|wedding|surgery|operation|check-?up|"
        r"dentist|viewing|"
        r"hearing|conference|marathon|race|concert|birthday\ party|final\ round|round|test|lesson|class|trip)"
    ),
    "DAY": f"(?i:{DAY})",
}

# Capitalised, and no name, no place, no employer.
_NO_NAME = re.compile(
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June|July|August|September|October|"
    r"November|December|Linux|Ubuntu|Debian|Mac|MacOS|Windows|Python|Rust|Go|Java|Kotlin|Ruby|Swift|Scala|Postgres\w*|"
    r"MySQL|MongoDB|Redis|Azure|Git[HL]ub|Gitlab|Slack|Teams|Zoom|Notion|Gmail|Outlook|Android|iPhone|Vim|Emacs|Chrome|"
    r"Firefox|Kubernetes|Docker|React|Vue|TypeScript|JavaScript|Claude|ChatGPT|Netflix|Spotify|Discord|Reddit|Telegram|"
    r"WhatsApp|Instagram|Facebook|Twitter|LinkedIn|Sales|Support|Marketing|Engineering|Finance|English|Earth|The|I|"
    r"It|This",
)
_A_FIRM = re.compile(r"\b(?:Ltd|Inc|Corp|Co|LLC|GmbH|AG|PLC|Group|Team|Support|Sales|Bank|Insurance|University)\b")


def a_place(words: str) -> bool:
    return a_name(words) and not _A_FIRM.search(words)


def a_name(words: str) -> bool:
    first = words.split()[0].rstrip(",.")
    return _NO_NAME.fullmatch(first) is None and not (len(words) > 1 and words.isupper())


_DIET = re.compile(_PARTS["DIET"])


def alike(predicate: str, old: Any, words: str) -> Any:
    """Return the value that the words name in place of the old one, or None if they are no such thing."""
    if isinstance(old, int):
        return int(words) if words.isdecimal() else None
    if predicate == "diet":
        return words if _DIET.fullmatch(words) else None
    if not isinstance(old, str) or (old[:1].isupper() and not (words[:1].isupper() and a_name(words))):
        return None
    return None if NOT_A_THING.match(words) or (predicate == "lives_in" and not a_place(words)) else words


NOT_A_THING = re.compile(
    r"(?i)(?:it|that|this|these|those|them|him|her|you|your|his|their|its|how|what|when|where|who|why|which|one|"
    r"some|being|"
    r"the\ way|the\ idea|the\ (?:first|second|last|third)|to\ (?:know|see|hear|think|say|ask|admit|break|be|tell|"
    r"have|thank)|"
    r"both|all|any|anything|everything|nothing|something|each|every|either|neither|none|most|much|more|like|if|me|"
    r"my|us|our)\b",
    re.VERBOSE,
)
SPLIT = re.compile(r",\s*(?:and\s+)?|\s+and\s+(?!the\b)")


def stated(predicate: str, value: Any, seen: Seen, *, wrong: str | None = None, changed: bool = False) -> FactDraft:
    """Return a draft: a correction if it names what was wrong, or opens with "actually" and has one value."""
    if isinstance(value, str):
        value = value.rstrip(" .'")
    if wrong is not None:
        return FactDraft(predicate, value, action="correct", replaces=wrong)
    correct = seen.clause.correcting and single_valued(predicate) and not changed
    return FactDraft(predicate, value, action="correct" if correct else "assert")


# "the energy", "scents like this", "going to …": they mean something only where they were said.
_HALF = re.compile(r"(?:the|not)\b.*|.*\b(?i:to|of|the|a)|.*\b(?i:this|that|these|those)\b.*")
_ACT = re.compile(r"(?:to\ \w+|\w+ing)\b.*")


def things(predicate: str, words: str, action: Action = "assert", rest: str = "") -> Iterator[FactDraft]:
    """Yield the thing, unless it is none or half of one. `rest` is what was cut off behind it."""
    thing = words.strip(" .'")
    if not thing or len(thing.split()) > 5 or NOT_A_THING.match(thing) or _HALF.fullmatch(thing):
        return
    if _ACT.fullmatch(thing) and re.match(r"\ (?:with|for|in|by|when|as|since)\b", rest):
        return
    yield FactDraft(predicate, thing, action=action)
