"""A made-up corpus of everyday talk: plain English clauses with their slots filled, a fixed seed.

Made of real words so that a static embedder and a stemmer see the statistics they see in use; random letters give
vectors that lie too evenly for any graph index.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Corpus"]

_SLOTS = {
    "person": [
        "Mira",
        "Tomas",
        "Ines",
        "Jakob",
        "Leila",
        "Oskar",
        "Priya",
        "Ruben",
        "Salma",
        "Viktor",
        "Wanda",
        "Yusuf",
        "Noor",
        "Elio",
        "Greta",
        "Hugo",
    ],
    "relative": [
        "my sister",
        "my brother",
        "my aunt",
        "my manager",
        "our neighbour",
        "my cousin",
        "the dentist",
        "my flatmate",
        "the landlord",
        "my daughter",
        "my son",
        "grandma",
        "the trainer",
        "my old teacher",
        "the vet",
        "our accountant",
    ],
    "place": [
        "Porto",
        "Lisbon",
        "Oslo",
        "Ghent",
        "Turin",
        "Malmo",
        "Bergen",
        "Krakow",
        "Leeds",
        "Bristol",
        "Geneva",
        "Valencia",
        "Tartu",
        "Graz",
        "Bruges",
        "Seville",
        "Dublin",
        "Antwerp",
        "Riga",
        "Florence",
    ],
    "food": [
        "lentil soup",
        "mushroom risotto",
        "plum cake",
        "fish curry",
        "rye bread",
        "goat cheese",
        "walnut salad",
        "pancakes",
        "dumplings",
        "tomato stew",
        "apple pie",
        "sushi",
        "roast pumpkin",
        "bean tacos",
        "black coffee",
        "oat porridge",
        "ginger tea",
        "dark chocolate",
    ],
    "hobby": [
        "sailing",
        "pottery",
        "trail running",
        "chess",
        "birdwatching",
        "climbing",
        "watercolours",
        "the cello",
        "salsa dancing",
        "woodwork",
        "swimming",
        "photography",
        "beekeeping",
        "knitting",
        "cycling",
        "choir",
        "gardening",
        "stargazing",
        "kayaking",
        "calligraphy",
    ],
    "job": [
        "data analyst",
        "nurse",
        "carpenter",
        "product manager",
        "translator",
        "pharmacist",
        "electrician",
        "architect",
        "editor",
        "chemist",
        "software tester",
        "beekeeper",
        "barista",
        "librarian",
        "surveyor",
        "animator",
        "paramedic",
        "tax adviser",
    ],
    "thing": [
        "bicycle",
        "laptop",
        "tent",
        "guitar",
        "passport",
        "washing machine",
        "camera",
        "sofa",
        "projector",
        "kayak",
        "sewing machine",
        "backpack",
        "microscope",
        "printer",
        "drill",
        "tablet",
        "headphones",
        "violin",
        "telescope",
        "umbrella",
    ],
    "time": [
        "on Monday morning",
        "next Thursday",
        "at the end of March",
        "in early June",
        "last weekend",
        "two years ago",
        "tomorrow at nine",
        "before the holidays",
        "every second Friday",
        "around noon",
        "in the evening",
        "this autumn",
    ],
    "mood": [
        "tired",
        "excited",
        "worried",
        "relieved",
        "proud",
        "bored",
        "curious",
        "nervous",
        "grateful",
        "a bit lost",
        "hopeful",
        "annoyed",
    ],
    "number": [
        "two",
        "three",
        "four",
        "five",
        "seven",
        "nine",
        "twelve",
        "fifteen",
        "twenty",
        "forty",
        "sixty",
        "ninety",
    ],
    "animal": ["cat", "old dog", "parrot", "rabbit", "tortoise", "horse", "hamster", "goldfish", "gecko", "goat"],
    "problem": [
        "a broken boiler",
        "a sore knee",
        "a late invoice",
        "a lost key",
        "a flat tyre",
        "a power cut",
        "a cancelled train",
        "a leaking roof",
        "a wrong address",
        "a headache",
        "a slow connection",
        "a missing parcel",
    ],
    "topic": [
        "the budget",
        "the contract",
        "the visa",
        "the renovation",
        "the exam",
        "the insurance",
        "the wedding",
        "the trip",
        "the garden",
        "the mortgage",
        "the recipe",
        "the rehearsal",
        "the tax form",
        "the interview",
        "the launch",
        "the diet",
    ],
}
_CLAUSES = """I am moving to {place} {time}
{person} called about {topic} and sounded {mood}
we had {food} with {relative} {time}
I started {hobby} {time} and feel {mood} about it
{relative} works as a {job} in {place}
my {animal} needs to see somebody because of {problem}
could you remind me of {topic} {time}
I bought a {thing} for {number} hundred euros
the {thing} I ordered from {place} never arrived
{person} and I went {hobby} near {place}
I would rather not eat {food} any more
the appointment with {relative} is {time}
they offered me a job as a {job} for {number} thousand a month
I felt {mood} after the call about {topic}
there was {problem} again, so we stayed in {place}
{person} recommended {food}, but I am {mood} about it
I have {number} days left to finish {topic}
{relative} gave me a {thing} {time}
what did {person} say about {topic}
I was thinking of {hobby} lessons in {place}
my dream is to live as a {job} by the sea
we adopted a {animal} {time} and called it {person}
the doctor said that {problem} comes from too much {hobby}
please note that {relative} cannot stand {food}
I lent my {thing} to {person} {time}
it takes {number} hours by train from {place} to {place}
do you remember the {animal} that {relative} had in {place}
I am saving for a {thing} until {topic} is settled
{person} is {mood} because of {problem}
let us talk about {topic} when I am back from {place}""".splitlines()
_LINKS = [". ", ", and ", ", but ", "; ", ", because ", ". By the way, "]


class Corpus:
    """Endless texts of one to three clauses (6 to 40 words), each speaker with places, people and pastimes of its own.

    A person's talk keeps coming back to the same few things; a table where everybody draws from one urn would be
    harder for a graph index with a filter than any real one (and easier for an exact scan).
    """

    def __init__(self, seed: int = 7) -> None:
        self._seed = seed
        self.random = np.random.default_rng(seed)
        self._own: dict[str, dict[str, list[str]]] = {}

    def _slots(self, speaker: str) -> dict[str, list[str]]:
        if speaker not in self._own:
            own = np.random.default_rng([self._seed, *speaker.encode()])
            self._own[speaker] = {
                slot: [str(word) for word in own.choice(words, size=7, replace=False)] for slot, words in _SLOTS.items()
            }
        return self._own[speaker]

    def _clause(self, speaker: str) -> str:
        words, own = [], self._slots(speaker)
        for part in str(self.random.choice(_CLAUSES)).split("{"):
            slot, found, rest = part.partition("}")
            words.append(str(self.random.choice(own[slot])) + rest if found else part)
        return "".join(words)

    def texts(self, count: int, speaker: str = "anyone") -> list[str]:
        """Return count texts of a speaker."""
        made = []
        for clauses in self.random.integers(1, 4, size=count):
            text = self._clause(speaker)
            for _ in range(clauses - 1):
                text += str(self.random.choice(_LINKS)) + self._clause(speaker)
            made.append(text)
        return made

    def query_like(self, text: str, words: int = 6) -> str:
        """Return a question that shares words with text, longer words first as people ask for things by name."""
        parts = [part for part in text.split() if len(part) > 3]
        chosen = self.random.choice(len(parts), size=min(words, len(parts)), replace=False)
        return " ".join(parts[i] for i in sorted(chosen))
