"""From a turn to the clauses in which its speaker plainly states something of himself. English. Pure.

Left out: questions, hypotheticals ("suppose", "if I", "imagine"), whole turns with a joke in them, what others
say or think, quoted text, code, and texts given to be worked on ("translate this: …"). Offsets are kept, so a
clause is always a verbatim piece of the turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["MASK", "Clause", "clauses"]

# Stands for each character of text that is not the speaker's own statement: no pattern matches it.
MASK = "\ufffc"

# What people say of themselves is short. A longer turn is a pasted document, read from the start only.
_MAX_TURN_CHARS = 20_000
_MAX_CLAUSE_CHARS = 400

_FOREIGN = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>[^\n]*|\"[^\"]{0,2000}\"|“[^”]{0,2000}”|«[^»]{0,2000}»"
    r"|(?<!\w)'[^'\n]{3,2000}'(?!\w)|<[^<>\n]{1,200}>"
    r"|https?://\S+"
    # A line of a dialogue, "Tom: I live in Rome".
    r"|^[ \t]*(?:\[[^\]\n]{0,40}\][ \t]{0,9})?(?!(?:Note|Update|Correction|PS|P\.S\.|FYI|Reminder|Also|Sorry)\b)"
    r"[A-Z][\w.]*(?:\ [A-Z][\w.]*)?(?:\ \([^)\n]*\))?:\ [^\n]*",
    re.DOTALL | re.MULTILINE,
)
_JOKE = re.compile(
    r"\b(?:kidding|joking|just a joke|j/k|jk|role-?play(?:ing)?|pretend(?:ing)?|sarcas\w+)\b|(?<!\S)/s\b|😜|🤪",
    re.IGNORECASE,
)
# From here to the end of the turn nothing is the speaker's own.
_TAINTS = re.compile(
    r"^\W*(?:please\s+|(?:can|could|would|will)\s+you\s+(?:please\s+)?)?(?:suppose|supposing|imagine|"
    r"let'?s\s+(?:say|imagine|pretend|assume)"
    r"|assume|assuming|say\s+that|what\s+if|hypothetically|translate|rewrite|rephrase|paraphrase|proofread|"
    r"summari[sz]e|edit|"
    r"(?:write|draft|compose)\b[^.!?\n]*[:\n]|here(?:'s|\s+is|\s+are)\s+(?:a|an|the|my|our|some)\s+(?:text|story|"
    r"letter|email|essay|"
    r"draft|poem|lyrics|dialogue|quote|script|character|example|template|sample)\w*|example:|for\s+example|e\.g\.)",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:if|unless|suppose|supposing|imagine|wish|wished|hypothetical(?:ly)?|"
    r"as\s+though|whether|dream(?:t|ed)?|in\s+my\s+dream|in\s+the\s+(?:story|novel|game|book|film|movie)|"
    r"my\s+character)\b",
    re.IGNORECASE,
)
# In the clause itself; elsewhere in the sentence they are about something else.
_DOUBTFUL = re.compile(r"\b(?:would|could|might|maybe|perhaps|probably|almost|nearly|apparently)\b", re.IGNORECASE)
_REPORTED = re.compile(
    r"\b(?:he|she|they|you|people|everyone|somebody|someone|who|it)\s+(?:say|says|said|think|thinks|thought|believe|"
    r"believes|believed|claim|claims|claimed|told|heard|wrote|assume|assumes|assumed)\b|\baccording\s+to\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?=\S)[^.!?\n]+)*[.!?]*")
_JOINT = re.compile(
    r"(?:,\s*|(?<!\s)\s+)(?:and|but|so|also|though|although)(?:\s+also)?\s+(?=(?:I|my)\b)|[;:]\s+|\s[–—-]\s|,\s+"
    r"(?=(?:actually\s+)?(?:I|my)\b)",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"(?:\s|,|(?:and|but|so|well|oh|hi|hello|hey|yes|yeah|yep|no|nope|sorry|oops|whoops|wait|hang\s+on|hold\s+on|sure|ok|okay|also|plus|anyway|"
    r"by\s+the\s+way|btw|"
    r"fyi|just\s+so\s+you\s+know|remember(?:\s+that)?|note(?:\s+that)?|please\s+(?:remember|note)(?:\s+that)?|"
    r"for\s+the\s+record|as\s+i\s+said|like\s+i\s+said|there|now|then|personally|currently|these\s+days|nowadays|thanks|"
    r"thank\s+you)"
    r"(?=[\s,:!]|$)[,:!]?)*",
    re.IGNORECASE,
)
_CORRECTING = re.compile(
    r"\s*(?:actually|correction|in\s+fact|my\s+mistake|i\s+misspoke|i\s+was\s+wrong|to\s+correct\s+myself|"
    r"i\s+made\s+a\s+mistake|"
    r"(?:sorry|no),?\s+i\s+meant(?:\s+to\s+say)?(?:\s+that)?)\b[\s,:.–—-]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """`text` is what to match, from its first telling word; `quote` is the verbatim piece of the turn it is in.

    `correcting` says that it opens with "actually" or the like. `sentence` is the masked sentence around it.
    """

    text: str
    quote: str
    sentence: str
    correcting: bool


def clauses(text: str) -> Iterator[Clause]:
    """Yield the clauses of a turn that may state something of the speaker, in order."""
    text = text[:_MAX_TURN_CHARS]
    if _JOKE.search(text):
        return
    masked = _FOREIGN.sub(lambda found: MASK * len(found[0]), text.replace("’", "'"))
    correcting = False
    for sentence in _SENTENCE.finditer(masked):
        whole = sentence[0]
        if _TAINTS.match(whole):
            return
        if whole.rstrip().endswith("?") or _UNSURE.search(whole) or _REPORTED.search(whole):
            correcting = False
            continue
        # "I misspoke. I have no sister.": the next sentence is what corrects.
        only = _CORRECTING.fullmatch(_after_opening(whole.rstrip(".!")))
        for start, stop in _pieces(whole):
            piece = whole[start:stop].rstrip(" ,.!;:")
            if len(piece) > _MAX_CLAUSE_CHARS:
                continue
            body = _after_opening(piece)
            if found := _CORRECTING.match(body):
                correcting = True
                body = _after_opening(body[found.end() :])
            if body.strip() and not _DOUBTFUL.search(body):
                quote = text[sentence.start() + start : sentence.start() + start + len(piece)].strip()
                yield Clause(body.strip(), quote, whole, correcting)
        correcting = only is not None


def _after_opening(piece: str) -> str:
    found = _OPENING.match(piece)
    return piece[found.end() :] if found else piece


def _pieces(sentence: str) -> Iterator[tuple[int, int]]:
    start = 0
    for joint in _JOINT.finditer(sentence):
        yield start, joint.start()
        start = joint.end()
    yield start, len(sentence)
