"""The names of what is known about a subject: how they are written, and how many values each may have.

Predicates are ASCII: `lives_in`, `billing.plan`. A letter of another script that looks like one of these would
otherwise be a second name for the same thing, and a way round every rule that goes by name.

**How many values.** `single_valued` answers in this order: the well-known names below; the last part of a dotted
name; the shape of the name (`favorite_*`, `*_date`, `billing.plan`: an attribute, one value); else several. The
default is several because its error is the smaller one: a value too many is shown, where the other closes a true
one.
"""

from __future__ import annotations

import re
import unicodedata

from pgmem_core.errors import InvalidArgument

__all__ = [
    "MAX_PREDICATE_CHARS",
    "canonical",
    "normalise_predicate",
    "opposites",
    "related",
    "single_valued",
    "value_named_by",
    "well_known",
]

MAX_PREDICATE_CHARS = 100

_TOKEN = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JOINTS = re.compile(r"[\s\-_/]+")
_DOTS = re.compile(r"_*\.[._]*|_*:+_*")

_SINGLE = frozenset(
    {
        "name", "first_name", "last_name", "preferred_name", "pronouns", "gender", "age", "birthday", "birthplace",
        "nationality", "from", "lives_in", "address", "works_at", "occupation", "employment_status", "diet", "timezone",
        "locale", "native_language", "language", "email", "phone", "marital_status", "spouse", "height", "weight",
        "blood_type", "notice_period", "salary", "salary_expectation", "plan", "status", "theme", "budget",
    }
)  # fmt: skip
_MULTI = frozenset(
    {
        "likes", "dislikes", "prefers", "avoids", "allergic_to", "speaks", "knows", "has_pet", "has_child",
        "has_sibling", "has_parent", "has_friend", "friend", "colleague", "owns", "uses", "hobby", "interest", "skill",
        "visited", "studied_at", "worked_at", "lived_in", "goal", "task", "note", "constraint", "plays", "eats",
        "drinks", "event", "project", "condition", "medication", "appointment", "deadline",
    }
)  # fmt: skip
_SINGLE_SHAPE = re.compile(
    r"(?:favou?rite|current|primary|main|preferred|default|next|last|first|home|number_of)_.+"
    r"|.+_(?:date|time|at|name|email|phone|address|id|status|plan|count|age|birthday|deadline|version|url|size)"
)
# Other names that models give to the same thing, about a person.
_ALIASES = {
    alias: name
    for name, aliases in {
        "name": "full_name user_name my_name called is_called is_named",
        "lives_in": "location city residence home_city home_town_now current_city current_location lives resides_in "
        "living_in lives_at residing_in moved_to place_of_residence resident_of based_in",
        "from": "hometown home_town origin comes_from is_from place_of_origin",
        "works_at": "employer company workplace works_for employed_by employed_at current_employer job_at joined",
        "occupation": "job job_title profession works_as role position title occupation_title",
        "birthday": "birth_date date_of_birth dob birthdate born_on",
        "diet": "dietary_preference dietary_restriction dietary_restrictions diet_type dietary is_vegan is_vegetarian",
        "allergic_to": "allergy allergies has_allergy food_allergy allergic",
        "likes": "like loves love enjoys enjoy is_fond_of interested_in_food",
        "dislikes": "dislike hates hate does_not_like doesnt_like",
        "speaks": "language_spoken languages_spoken speaks_language languages",
        "has_pet": "pet pets pet_name owns_pet",
        "has_child": "child children son daughter has_son has_daughter kid kids",
        "timezone": "time_zone tz",
        "email": "email_address e_mail mail",
        "phone": "phone_number telephone mobile mobile_number",
    }.items()
    for alias in aliases.split()
}
# A yes to these names a value of the other: "is_vegan: true" is a diet, and the diet is no "true".
_VALUES = {"is_vegan": "vegan", "is_vegetarian": "vegetarian"}
_OPPOSITES = {
    "likes": ("dislikes",),
    "dislikes": ("likes",),
    "eats": ("avoids",),
    "drinks": ("avoids",),
    "avoids": ("eats", "drinks"),
}


def normalise_predicate(raw: object, *, name: str = "predicate") -> str:
    """Return the predicate in lower case, words joined by `_`, parts by `.`: "Lives In" and livesIn are lives_in.

    `name` is what the error calls it. Raises: InvalidArgument.
    """
    if not isinstance(raw, str):
        raise InvalidArgument(f"{name} must be a string, got {type(raw).__name__}")
    if len(raw) > 4 * MAX_PREDICATE_CHARS:  # before any work on it
        raise InvalidArgument(_too_long(name, len(raw)))
    text = unicodedata.normalize("NFKC", raw).strip()
    text = _JOINTS.sub("_", _CAMEL.sub("_", text).lower())
    text = _DOTS.sub(".", text).strip("_.")
    if len(text) > MAX_PREDICATE_CHARS:
        raise InvalidArgument(_too_long(name, len(text)))
    if not _TOKEN.fullmatch(text):
        raise InvalidArgument(
            f"{name} {raw[:80]!r} is not a name; use ASCII letters, digits, '_' and '.', for example 'billing.plan'"
        )
    return text


def _too_long(name: str, length: int) -> str:
    return f"{name} has {length} characters, at most {MAX_PREDICATE_CHARS} are allowed; put the rest into the value"


def canonical(predicate: str) -> str:
    """Return the well-known name of a normalised predicate about a person, or the predicate itself.

    `user.` in front is dropped: `user.employer` is `works_at`.
    """
    for owner in ("user.", "person."):
        predicate = predicate.removeprefix(owner)
    return _ALIASES.get(predicate, predicate)


def value_named_by(predicate: str) -> str | None:
    """Return the value that a normalised predicate itself names: "vegan" for `is_vegan`; None for most."""
    return _VALUES.get(predicate)


def well_known(predicate: str) -> bool | None:
    """Return True if the name is known to have one value at a time, False if several, None if it is not known."""
    for known in (predicate, predicate.rpartition(".")[2]):
        if known in _SINGLE:
            return True
        if known in _MULTI:
            return False
    return None


def single_valued(predicate: str) -> bool:
    """True if a subject has one value of this normalised predicate at a time: as known, or by its shape."""
    known = well_known(predicate)
    if known is not None:
        return known
    return "." in predicate or _SINGLE_SHAPE.fullmatch(predicate) is not None


def opposites(predicate: str) -> tuple[str, ...]:
    """Return the predicates that cannot have the same value at the same time: likes and dislikes."""
    return _OPPOSITES.get(predicate, ())


def related(predicate: str) -> frozenset[str]:
    """Return the predicates whose facts reconciliation must see to judge a draft of this one."""
    found = {predicate, canonical(predicate)}
    found.update(other for one in tuple(found) for other in opposites(one))
    return frozenset(found)
