"""A made-up corpus of everyday talk: plain English clauses with their slots filled, a fixed seed.

Made of real words so that a static embedder and a stemmer see the statistics they see in use; random letters give
vectors that lie too evenly for any graph index.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Corpus"]

_SLOTS = {
    "person": (
        "Mira|Tomas|Ines|Jakob|Leila|Oskar|Priya|Ruben|Salma|Viktor|Wanda|Yusuf|Noor|Elio|Greta|Hugo|"
        "Anya|Bastian|Carmen|Dario|Edith|Fabian|Gwen|Henrik|Iris|Jonas|Katya|Lorenzo|Maren|Niklas|"
        "Olive|Pavel|Quentin|Rosa|Stellan|Thea|Ulrich|Vera|Wim|Xenia|Yara|Zoltan|Amara|Birger|Celia|"
        "Dag|Elin|Farid|Gita|Hakon"
    ),
    "place": (
        "Porto|Lisbon|Oslo|Ghent|Turin|Malmo|Bergen|Krakow|Leeds|Bristol|Geneva|Valencia|Tartu|Graz|"
        "Bruges|Seville|Dublin|Antwerp|Riga|Florence|Aarhus|Basel|Cork|Delft|Evora|Freiburg|Granada|"
        "Haarlem|Innsbruck|Jena|Kaunas|Lund|Metz|Nantes|Odense|Pisa|Reims|Salzburg|Trieste|Utrecht|"
        "Vigo|Weimar|York|Zagreb|Arles|Bilbao|Como|Dresden"
    ),
    "relative": (
        "my sister|my brother|my aunt|my manager|our neighbour|my cousin|the dentist|my flatmate|"
        "the landlord|my daughter|my son|grandma|the trainer|my old teacher|the vet|our accountant|"
        "the plumber|my godfather|the nurse|our tenant|the librarian|my uncle|the caretaker|"
        "our solicitor"
    ),
    "food": (
        "lentil soup|mushroom risotto|plum cake|fish curry|rye bread|goat cheese|walnut salad|"
        "pancakes|dumplings|tomato stew|apple pie|sushi|roast pumpkin|bean tacos|black coffee|"
        "oat porridge|ginger tea|dark chocolate|beetroot soup|almond croissants|pickled herring|"
        "onion tart|rhubarb crumble|lamb stew|saffron rice|cherry strudel|garlic prawns|leek gratin|"
        "maple waffles|nettle soup|olive focaccia|pear chutney"
    ),
    "hobby": (
        "sailing|pottery|trail running|chess|birdwatching|climbing|watercolours|the cello|"
        "salsa dancing|woodwork|swimming|photography|beekeeping|knitting|cycling|choir|gardening|"
        "stargazing|kayaking|calligraphy|archery|badminton|juggling|fencing|genealogy|improv|judo|"
        "origami|quilting|rowing|surfing|tango|yoga|foraging"
    ),
    "job": (
        "data analyst|nurse|carpenter|product manager|translator|pharmacist|electrician|architect|"
        "editor|chemist|software tester|barista|librarian|surveyor|animator|paramedic|tax adviser|"
        "geologist|conductor|florist|welder|actuary|cartographer|optician|midwife|roofer|sommelier|"
        "upholsterer"
    ),
    "thing": (
        "bicycle|laptop|tent|guitar|passport|washing machine|camera|sofa|projector|kayak|"
        "sewing machine|backpack|microscope|printer|drill|tablet|headphones|violin|telescope|umbrella|"
        "typewriter|lantern|hammock|kettle|wardrobe|accordion|barometer|compass|dehumidifier|"
        "espresso machine|freezer|greenhouse|heater|ladder|mattress|notebook"
    ),
    "time": (
        "on Monday morning|next Thursday|at the end of March|in early June|last weekend|two years ago|"
        "tomorrow at nine|before the holidays|every second Friday|around noon|in the evening|"
        "this autumn|by Sunday|since January|during the fair|after lunch|on the twelfth|in mid August|"
        "at dawn|within a fortnight"
    ),
    "mood": (
        "tired|excited|worried|relieved|proud|bored|curious|nervous|grateful|a bit lost|hopeful|"
        "annoyed|cheerful|sceptical|homesick|stubborn|restless|content"
    ),
    "number": ("two|three|four|five|seven|nine|twelve|fifteen|twenty|forty|sixty|ninety"),
    "animal": (
        "cat|old dog|parrot|rabbit|tortoise|horse|hamster|goldfish|gecko|goat|ferret|canary|donkey|"
        "hedgehog|iguana|llama|peacock"
    ),
    "problem": (
        "a broken boiler|a sore knee|a late invoice|a lost key|a flat tyre|a power cut|"
        "a cancelled train|a leaking roof|a wrong address|a headache|a slow connection|"
        "a missing parcel|a cracked window|a burnt fuse|an expired card|a jammed lock|a stolen wallet|"
        "a torn ligament|a mouldy cellar|a noisy fan|a double booking"
    ),
    "topic": (
        "the budget|the contract|the visa|the renovation|the exam|the insurance|the wedding|the trip|"
        "the garden|the mortgage|the recipe|the rehearsal|the tax form|the interview|the launch|"
        "the diet|the audit|the lease|the pension|the scholarship|the survey|the thesis|the warranty|"
        "the auction|the bonfire|the census"
    ),
    "adjective": (
        "copper|velvet|crooked|silent|amber|dusty|narrow|frosty|golden|hollow|ivory|jagged|knotted|"
        "leafy|marble|nimble|oaken|purple|quaint|rusty|silver|tangled|umber|vivid|woolly|yellowed|"
        "ancient|brittle|cobalt|drowsy|earthen|fluffy|glossy|humid|indigo"
    ),
    "noun": (
        "anchor|basket|candle|drawer|easel|feather|gable|harbour|inkwell|jigsaw|kiosk|lighthouse|"
        "mosaic|needle|orchard|pulley|quarry|ribbon|saddle|thimble|urn|valley|windmill|yarn|zipper|"
        "attic|buoy|cellar|dome|envelope|ferry|gravel|hinge|islet|jetty|kiln|ledger|meadow|nozzle|"
        "oven|parapet|quilt|railing|spindle|trellis|vault|wharf|alcove|bridle|cobbler|dairy|elm|flask|"
        "grove|hatch"
    ),
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
_NAMING = {
    word
    for slot, words in _SLOTS.items()
    if slot not in ("time", "number", "mood")
    for entry in words.split("|")
    for word in entry.split()
    if len(word) > 2 and word not in ("the", "our")
}
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
                slot: [str(word) for word in own.permutation(words.split("|"))[: len(words.split("|")) * 2 // 3]]
                for slot, words in _SLOTS.items()
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
            own = self._slots(speaker)
            made.append(f"{text}, near the {self.random.choice(own['adjective'])} {self.random.choice(own['noun'])}")
        return made

    def query_like(self, text: str, words: int = 5) -> str:
        """Return a question that shares words with text, names and things rather than the words between them.

        A query has 5.7 terms which together stand in 0.18 of the speaker's texts each: twice as much to read as for
        LoCoMo's questions (5.3 terms, 0.09; what stands in more than a tenth left out).
        """
        parts = [part.strip(".,;") for part in text.split()]
        named = [part for part in parts if part in _NAMING]
        chosen = self.random.permutation(named or parts)[:words]
        return "do you remember " + " ".join(str(word) for word in chosen)
