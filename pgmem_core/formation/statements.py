"""What people say of themselves: who they are, their work, what they like, eat and speak. Readers of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgmem_core.facts import FactDraft
from pgmem_core.formation.grammar import NOT_A_THING, SPLIT, Seen, a_name, a_place, reads, stated, things

__all__: list[str] = []


# -- who -----------------------------------------------------------------------------------------------------------


@reads(
    r"(?i:my\ (?:full\ |first\ )?name\ is|my\ name's|I'm\ called|I\ am\ called|I\ go\ by|call\ me|you\ can\ call\ "
    r"me)\ (?P<value>{NAME}){REST}"
)
def _name(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if a_name(found["value"]):
        yield stated("name", found["value"], seen)


@reads(
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|lived|living|based|reside|residing)\ (?i:not\ )(?:in|at)\ "
    r"(?P<not>{PLACE}),?\ (?i:but)\ (?:in\ |at\ )?(?P<value>{PLACE}){REST}",
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|living|based|reside|residing)\ (?:in|at)\ (?P<value>{PLACE}),\ (?i:not)\ "
    r"(?:in\ |at\ )?(?P<not>{PLACE}){REST}",
    r"{I}(?:'m|\ am)?\ {OFTEN}(?i:live|living|based|reside|residing)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"(?P<moved>{I}(?:'ve|\ have)?\ (?:(?i:just|recently|now|finally)\ )?(?i:moved|relocated)\ (?i:back\ "
    r")?(?:here\ )?)to\ (?P<value>{PLACE}){REST}",
)
def _lives(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    groups = found.groupdict()
    if a_place(found["value"]):
        yield stated("lives_in", found["value"], seen, wrong=groups.get("not"), changed="moved" in groups)


@reads(
    r"{I}\ (?i:no\ longer\ live)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"{I}\ {NOT}\ (?i:live)\ (?:in|at)\ (?P<value>{PLACE}){MORE}{REST}",
    r"{I}\ (?i:used\ to\ live)\ (?:in|at)\ (?P<value>{PLACE}){REST}",
    r"{I}(?:'ve|\ have)?\ (?i:moved\ away\ from|moved\ out\ of)\ (?P<value>{PLACE}){REST}",
)
def _left_place(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("lives_in", found["value"], action="end")


@reads(r"{I}\ ?{NEVER}\ (?i:lived)\ (?:in|at)\ (?P<value>{PLACE}){REST}")
def _never_lived(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("lives_in", found["value"], action="retract")


@reads(
    r"(?:{AM}\ (?i:originally\ )?|{I}\ (?i:come|came)\ (?i:originally\ )?)from\ (?P<value>{PLACE})(?i:\ "
    r"originally)?{REST}"
)
def _from(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if a_place(found["value"]):
        yield stated("from", found["value"], seen)


@reads(r"{I}\ (?i:was\ born)\ in\ (?P<value>{PLACE}){REST}")
def _born_in(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if a_place(found["value"]):
        yield stated("birthplace", found["value"], seen)


@reads(
    r"(?i:my\ birthday\ is|my\ birthday's|I\ was\ born)\ (?:on\ )?(?:the\ )?(?P<value>\d{1,2}(?:st|nd|rd|th)?\ "
    r"(?:of\ )?[A-Z][a-z]+(?:,?\ \d{4})?|[A-Z][a-z]+\ \d{1,2}(?:st|nd|rd|th)?(?:,?\ \d{4})?|\d{4}-\d\d-\d\d)"
)
def _birthday(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield stated("birthday", found["value"], seen)


@reads(r"{AM}\ (?P<value>\d{1,3})\ (?i:years\ old|y/o|yo)(?:,?\ .*)?")
def _age(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield stated("age", int(found["value"]), seen)


@reads(
    r"(?i:my\ time\ ?zone\ is)\ (?P<value>[A-Z][\w/+:-]*){REST}",
    r"{AM}\ in\ the\ (?P<value>[A-Z]\w+|[A-Z][a-z]+/[A-Z]\w+)\ (?i:time\ ?zone){REST}",
)
def _timezone(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield stated("timezone", found["value"], seen)


# -- work ----------------------------------------------------------------------------------------------------------


@reads(
    r"{AM}\ (?:an?|the)\ (?P<job>{JOB})(?:\ (?:at|for|with)\ (?P<at>{NAME})(?:\ in\ {PLACE})?)?{REST}",
    r"{I}\ {OFTEN}(?i:work)\ as\ an?\ (?P<job>{JOB})(?:\ (?:at|for|with)\ (?P<at>{NAME})(?:\ in\ {PLACE})?)?{REST}",
    r"(?:{I}\ {OFTEN}(?i:work)|{AM}\ (?i:working|employed))\ (?:at|for)\ (?P<at>{NAME})(?:\ in\ {PLACE})?(?:\ as\ "
    r"an?\ (?P<job>{JOB}))?{REST}",
)
def _works(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if found["job"]:
        yield stated("occupation", found["job"], seen)
    if found["at"] and a_name(found["at"]):
        yield stated("works_at", found["at"], seen)


@reads(
    r"{I}(?:'ve|\ have)?\ (?:(?i:just|recently)\ )?(?i:joined|started\ (?:working\ )?at|started\ (?:a\ new|a|my\ "
    r"new)\ job\ at)\ (?P<at>{NAME})(?:\ as\ an?\ (?P<job>{JOB}))?{REST}"
)
def _joined(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if found["job"]:
        yield stated("occupation", found["job"], seen, changed=True)
    if a_name(found["at"]):
        yield stated("works_at", found["at"], seen, changed=True)


@reads(
    r"{I}\ (?i:no\ longer\ work)\ (?:at|for)\ (?P<value>{NAME}){REST}",
    r"{I}\ {NOT}\ (?i:work)\ (?:at|for)\ (?P<value>{NAME}){MORE}{REST}",
    r"{I}\ (?i:used\ to\ work)\ (?:at|for)\ (?P<value>{NAME}){REST}",
    r"{I}(?:'ve|\ have)?\ (?:(?i:just|recently)\ )?(?i:quit|left)\ (?i:my\ job\ at)\ (?P<value>{NAME}){REST}",
)
def _left_work(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("works_at", found["value"], action="end")


@reads(
    r".*?(?i:my)\ (?P<what>notice\ period|salary\ expectation|preferred\ language|native\ language|blood\ type|"
    r"favou?rite\ [a-z]+(?:\ [a-z]+)?)\ (?i:is)(?i:\ now)?\ (?P<value>(?!(?i:not|the|that|so|to|when|how|what|very|"
    r"too)\b)[^,;:()]{1,50}?)(?:\ (?i:now)?\ ?(?i:instead\ of|rather\ than)\ .*|{REST})"
)
def _attribute(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    what = found["what"].lower().replace("favourite", "favorite").replace("colour", "color").replace(" ", "_")
    if re.search(r"(?i)\bone\ of\ my\b|\bnot\b", found[0]):
        return
    yield stated(what, found["value"].removesuffix(" now"), seen)


# -- likes, food, languages ----------------------------------------------------------------------------------------


@reads(
    r"{I}\ (?i:no\ longer)\ (?i:like|love|enjoy)\ {THING}{REST}",
    r"{I}\ {NOT}\ (?i:like|love|enjoy)\ {THING}{MORE}{REST}",
    r"{I}\ (?i:used\ to\ (?:like|love|enjoy))\ {THING}{REST}",
)
def _no_longer_likes(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield from things("likes", found["thing"], "end", found[0][found.end("thing") :])


@reads(
    r"{I}\ {OFTEN}(?:{NOT}\ {OFTEN}(?i:like|enjoy)|(?i:hate|dislike|detest|loathe|can't\ stand|cannot\ stand))\ "
    r"{THING}{REST}",
)
def _dislikes(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield from things("dislikes", found["thing"], rest=found[0][found.end("thing") :])


@reads(
    r"{I}\ {OFTEN}(?i:like|love|enjoy|adore)\ {THING}{REST}",
    r"{AM}\ (?i:a\ (?:big|huge)\ fan\ of|very\ fond\ of|fond\ of)\ {THING}{REST}",
)
def _likes(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield from things("likes", found["thing"], rest=found[0][found.end("thing") :])


@reads(r"{I}\ {OFTEN}(?i:prefer)\ {THING}{REST}")
def _prefers(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if not NOT_A_THING.match(found["thing"]):
        yield FactDraft("prefers", found["thing"])


@reads(
    r"{AM}\ (?i:a\ |an\ )?(?:(?i:strict|lifelong)\ )?(?P<value>{DIET}),?\ (?i:not)\ (?i:a\ |an\ "
    r")?(?P<not>{DIET}){REST}",
    r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<not>{DIET}),?\ (?i:but)\ (?i:a\ |an\ )?(?P<value>{DIET}){REST}",
    r"{AM}\ (?i:a\ |an\ )?(?:(?i:strict|lifelong)\ )?(?P<value>{DIET}){REST}",
    r"{AM}\ (?i:once\ again|again|back\ to(?:\ being)?)\ (?i:a\ |an\ )?(?P<value>{DIET}){REST}",
)
def _diet(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield stated("diet", found["value"], seen, wrong=found.groupdict().get("not"))


# "I became vegan but stopped" is the story of what is over.
_OVER = re.compile(r"(?i)\b(?:but|stopped|quit|gave|until|before|after|ended|lasted|almost)\b|\bfor\ an?\b")


@reads(
    r"{I}(?:'ve|\ have)?\ (?:(?i:just|recently|now|finally|since)\ )?(?i:gone|become|became|turned|went)\ "
    r"(?:(?i:back\ to(?:\ being)?)\ )?(?i:a\ |an\ )?(?P<value>{DIET}){REST}",
)
def _became_diet(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if not _OVER.search(found[0], found.end("value")):
        yield stated("diet", found["value"], seen, changed=True)


@reads(
    r"{AM}\ (?i:no\ longer)\ (?i:a\ |an\ )?(?P<value>{DIET}){REST}",
    r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<value>{DIET}){MORE}{REST}",
)
def _no_longer_diet(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("diet", found["value"], action="end")


@reads(
    r"{AM}\ (?i:not)\ (?i:a\ |an\ )?(?P<value>{DIET})",
    r"{I}\ (?i:was\ never|have\ never\ been)\ (?i:a\ |an\ )?(?P<value>{DIET})",
)
def _not_diet(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("diet", found["value"], action="retract")


@reads(
    r"{AM}\ (?:(?i:severely|very|highly|mildly|deathly)\ )?(?i:allergic)\ to\ (?P<things>[^;:()]{2,80}?)(?:\ "
    r"(?i:so|but|because|which)\ .*)?"
)
def _allergic(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    for thing in SPLIT.split(found["things"]):
        if not re.match(r"(?i)so\b|but\b|please\b", thing):
            yield from things("allergic_to", thing)


@reads(r"{AM}\ (?i:not)\ (?i:actually\ )?(?i:allergic)\ to\ {THING}{MORE}?{REST}")
def _not_allergic(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    ended = re.search(r"(?i)any\ ?(?:more|longer)", found[0])
    yield from things("allergic_to", found["thing"], action="end" if ended else "retract")


_MEAL = re.compile(r"(?i)(?:at|in|out|a|before|after|late|too|with|alone|together|breakfast|lunch|dinner|there|here)\b")


@reads(
    r"{I}\ (?i:no\ longer)\ (?P<verb>(?i:eat|drink))\ {THING}{REST}",
    r"{I}\ {NOT}\ (?P<verb>(?i:eat|drink))\ {THING}{MORE}{REST}",
)
def _no_longer_eats(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield from things(f"{found['verb'].lower()}s", found["thing"], action="end")
    yield from things("avoids", found["thing"])


@reads(
    r"{I}\ (?:(?i:can't|cannot|can\ not|never)|{NOT})\ {OFTEN}(?i:eat|drink)\ {THING}{REST}",
    r"{I}(?:'ve|\ have)\ (?i:also\ )?(?i:given\ up|stopped\ eating|stopped\ drinking)\ {THING}{REST}",
)
def _avoids(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if not re.match(r"(?i)on\b|trying\b|my\b", found["thing"]) and not _MEAL.match(found["thing"]):
        yield from things("avoids", found["thing"])


@reads(r"{I}\ (?:(?i:do|also|still)\ )*(?P<verb>(?i:eat|drink))\ {THING}{REST}")
def _eats(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    if not _MEAL.match(found["thing"]):
        yield from things(f"{found['verb'].lower()}s", found["thing"])


@reads(
    r"(?:{I}\ {OFTEN}(?i:speak)|{AM}\ (?i:fluent\ in))\ (?:(?i:fluent|some|native)\ )?(?P<langs>{LANGUAGE}(?:(?:,\ "
    r"(?:and\ )?|\ and\ )(?:(?i:some)\ )?{LANGUAGE})*)(?:\ (?i:fluently|natively))?{REST}"
)
def _speaks(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    for language in SPLIT.split(found["langs"]):
        yield FactDraft("speaks", language.removeprefix("some "))


@reads(r"{I}\ {NOT}\ (?i:speak)\ (?P<value>{LANGUAGE}){REST}")
def _speaks_not(found: re.Match[str], seen: Seen) -> Iterator[FactDraft]:
    yield FactDraft("speaks", found["value"], action="retract")
