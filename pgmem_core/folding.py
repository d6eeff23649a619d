"""When two texts, or two values, are the same: one documented normalisation.

`fold(text)`, in this order:

1. Characters that show nothing are removed: controls, format characters (joiners, bidi marks, tags), variation
   selectors, fillers, tatweel, marks that only underline or strike out. White space becomes one space.
2. NFKC: composed and decomposed forms, full-width, mathematical, circled and superscript letters are one.
3. Look-alikes. In a word that has Latin letters, a Cyrillic, Greek, Coptic, Armenian or Cherokee letter becomes the
   Latin one it looks like. A word without Latin letters becomes Latin only if its capitals all look so (Greek ΑΝΝΑ),
   else it is a word of its own language and stays. Digits of every script are ASCII digits; between letters, 0
   is o and 1 is l, and a capital I between small letters is l (but not in Mc- and Mac-).
4. Case is folded, dashes are `-`, quotation marks are `'`.
5. Outer quotation marks and a final `.`, `!`, `,` or `;` are dropped, if anything is left.

`value_key(value)` hashes JSON values so folded: objects regardless of the order of keys, 1 as 1.0, a string that
is written as a number as that number ("34" and 34), "true" as true, a list of one as its item. Lists keep their
order. Words are compared, not meanings: "annual" and "yearly" are two values, and so are "café" and "cafe".
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from decimal import Decimal
from hashlib import blake2b
from typing import Any

from pgmem_core.encoding import decode_json, encode_json
from pgmem_core.errors import InvalidArgument

__all__ = ["fold", "fold_space", "stands_in", "strip_invisible", "value_key"]

# What shows nothing and is no format character (category Cf) or control: joiners, fillers, variation selectors,
# tatweel, and marks that only draw a line.
_SHOWS_NOTHING = re.compile(
    "[\u034f\u0305\u0332\u0333\u0335-\u0338\u033f\u0640\u115f\u1160\u17b4\u17b5\u180b-\u180f\u20d0-\u20f0\u2800"
    "\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
_OTHER_SCRIPT = re.compile(
    "[\u0370-\u058f\u1f00-\u1fff\u13a0-\u13ff\uab70-\uabbf\u1c80-\u1c8f\u2c80-\u2cff\u2de0-\u2dff\ua640-\ua69f]"
)


def _table(*pairs: tuple[str, str]) -> dict[int, str]:
    made: dict[int, str] = {}
    for look, letters in pairs:
        made.update({ord(char): letter for char, letter in zip(look, letters, strict=True)})
    return made


_CHEROKEE = "ᎪᏴᏟᎠᎬᏀᎻᏆᎫᏦᏞᎷᏢᏒᏚᎢᏙᎳᏃ"
# After the "confusables" of Unicode Technical Standard 39, cut down to letters that a reader takes for Latin ones.
_UPPER = _table(
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿ", "ABEZHIKMNOPTYXCJ"),
    ("АВЕЅІЈКМНОРСТУХҮԌԚԜԀҺӀЬѴ", "ABESIJKMHOPCTYXYGQWDHLBV"),
    ("ՕՏԼՍՀ", "OSLUH"),
    (_CHEROKEE, "ABCDEGHIJKLMPRSTVWZ"),
    ("ⲀⲂⲈⲎⲒⲔⲘⲚⲞⲢⲤⲦⲨⲬ", "ABEHIKMNOPCTYX"),
)
_MIXED = _UPPER | _table(
    ("αβγεηικνορστυχωϲϳς", "abyenikvopotuxwcjc"),
    ("авеѕіјкмнорстухүԍԛԝԁһӏьѵгп", "abesijkmhopctyxygqwdhlbvrn"),
    ("ёїЁЇ", "ëïËÏ"),
    ("օսոռհցյ", "ounnhgj"),
    (_CHEROKEE.lower(), "abcdeghijklmprstvwz"),
    ("ⲁⲃⲉⲏⲓⲕⲙⲛⲟⲣⲥⲧⲩⲭ", "abehikmnopctyx"),
)
_LATIN_ALIKE = _table(
    ("ıȷɡɑɩʏ℮", "ijgaiye"),
    ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡᴢ", "abcdefghijklmnoprstuvwz"),
    # Negative circled and negative squared capitals, which NFKC leaves alone.
    ("".join(map(chr, range(0x1F150, 0x1F16A))), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ("".join(map(chr, range(0x1F170, 0x1F18A))), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
_MARKS = (
    dict.fromkeys(map(ord, "‐‑‒–—―−﹘﹣－"), "-")
    | dict.fromkeys(map(ord, "'‘’‚‛“”„‟«»‹›\"`´′″「」『』"), "'")
    | dict.fromkeys(map(ord, "。｡․"), ".")
)
_BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[01](?=[^\W\d_])")
_CAPITAL_I = re.compile(r"(?<=[a-z])(?<!\bMc)(?<!\bMac)I(?=[a-z])")


def strip_invisible(text: str) -> str:
    """Return the text without characters that show nothing; white space stays."""
    if text.isascii() and text.isprintable():
        return text
    text = _SHOWS_NOTHING.sub("", text)
    return "".join(char for char in text if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf", "Cs"))


def fold_space(text: str) -> str:
    """Return the text NFKC, in folded case, white space and quotation marks folded, nothing invisible in it.

    Weaker than `fold`: look-alikes and outer marks stay, so that what is found by it was written.
    """
    text = unicodedata.normalize("NFKC", strip_invisible(text)).casefold().translate(_MARKS)
    return _SPACE.sub(" ", text).strip()


def stands_in(folded: str, quote: str) -> bool:
    """True if the quote stands, whole words, in a text that `fold_space` has folded. A blank quote stands nowhere."""
    wanted = fold_space(quote)
    if not wanted:
        return False
    # Only at an end that is a letter of a script that parts words by spaces.
    left = r"(?<![a-z0-9])" if wanted[0].isascii() and wanted[0].isalnum() else ""
    right = r"(?![a-z0-9])" if wanted[-1].isascii() and wanted[-1].isalnum() else ""
    return re.search(left + re.escape(wanted) + right, folded) is not None


def fold(text: str) -> str:
    """Return the text as it is compared (see the module)."""
    text = unicodedata.normalize("NFKC", strip_invisible(text))
    if not text.isascii():
        # NFKC may have made an invisible character of a visible one (U+3164), and a mark may have parted a pair.
        text = unicodedata.normalize("NFKC", strip_invisible(text.translate(_LATIN_ALIKE)))
        text = "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)
        text = _WORD.sub(lambda word: _look(word[0]), text)
    text = _CAPITAL_I.sub("l", text)
    text = _BETWEEN_LETTERS.sub(lambda digit: "o" if digit[0] == "0" else "l", text)
    # İ folds to i and a dot above.
    text = unicodedata.normalize("NFKC", text.casefold()).replace("i\u0307", "i").translate(_MARKS)
    text = _SPACE.sub(" ", text).strip()
    return text.rstrip(".!,;' ").lstrip("' ") or text


def _look(word: str) -> str:
    """Return the word with letters of other scripts as the Latin ones they look like, where it looks Latin."""
    if not _OTHER_SCRIPT.search(word):
        return word
    if _LATIN.search(word):
        return word.translate(_MIXED)
    capitals = word.upper()
    if all(ord(char) in _UPPER or char.isdecimal() for char in capitals):
        return capitals.translate(_UPPER)
    return word


def value_key(value: Any) -> bytes:
    """Return the 32 bytes by which a value is compared.

    value: what JSON can hold, None excepted. Raises: InvalidArgument.
    """
    if value is None:
        raise InvalidArgument("value is None; a fact states something: to end or retract it, say so")
    plain = decode_json(encode_json(value, where="value"))
    text = json.dumps(_canonical(plain), ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, person=b"pgmem.value.1").digest()


def _canonical(value: Any) -> list[Any]:
    """Return the value tagged with its kind: no value of one kind is ever one of another by accident."""
    if value is None:
        return ["0"]
    if isinstance(value, bool):
        return ["b", value]
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(f"value holds {value}; a fact's numbers must be finite")
        return ["n", *_digits(Decimal(repr(value)) if isinstance(value, float) else Decimal(value))]
    if isinstance(value, str):
        folded = fold(value)
        if folded in ("true", "false"):
            return ["b", folded == "true"]
        return ["n", *_digits(Decimal(folded))] if _NUMBER.fullmatch(folded) else ["s", folded]
    if isinstance(value, list):
        return _canonical(value[0]) if len(value) == 1 else ["l", *map(_canonical, value)]
    pairs = ([fold(key), _canonical(item)] for key, item in value.items())
    return ["d", *sorted(pairs, key=lambda pair: json.dumps(pair))]


def _digits(number: Decimal) -> tuple[str, int]:
    """Return sign and digits, and the exponent, the same for 1, 1.0 and 10e-1. Exact at any length."""
    sign, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    if not written:
        return "0", 0
    kept = written.rstrip("0")
    return ("-" if sign else "") + kept, int(exponent) + len(written) - len(kept)
