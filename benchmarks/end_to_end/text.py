"""Plain English of any length, the same each time."""

from __future__ import annotations

import random
from typing import Any

SENTENCES = (
    "{when} we left {place} and walked along {way} until we came to {sight}.",
    "The people there {habit}, and {who} told us that {tale}.",
    "In {place} we met {who}, who had lived there for {number} years.",
    "It was {weather}, so we stayed at {sight} and talked about {topic}.",
    "Nobody in {place} could explain why {tale}, but {who} had written a letter about {topic}.",
    "{when} the road turned away from {way}, and behind {sight} it was {weather}.",
)
WORDS = {
    "when": ("On Monday", "In the afternoon", "Before breakfast", "Two days later", "At noon"),
    "place": ("Harwick", "the old port", "Lower Eston", "the upper valley", "Saint Bride"),
    "way": ("the canal", "a row of poplars", "the railway line", "the north shore", "a dry wall"),
    "sight": ("a stone bridge", "the empty mill", "an inn with green doors", "the lighthouse"),
    "habit": ("keep bees", "mend their own boats", "bake bread with rye", "speak very slowly"),
    "who": ("a retired teacher", "the ferryman", "my cousin Ellen", "a young botanist"),
    "tale": ("the river once ran uphill", "the bells were sold", "no train stopped in winter"),
    "number": ("eleven", "forty", "nearly sixty", "twenty-three"),
    "weather": ("raining hard", "too hot to work", "windy and clear", "foggy until late"),
    "topic": ("the price of wool", "the history of maps", "a lost library", "how clocks are made"),
}
# Small models soon repeat themselves, and then all draft the same; less so behind a list of facts.
ENDING = (
    "\n\nThe teacher read from a book of facts about the countries of the world. France: the "
    "capital is Paris, and the people grow wine. Italy: the capital is Rome, and the people make "
    "cheese. Japan:"
)


def english(tokenizer: Any, tokens: int) -> str:
    """A text of so many tokens, at least those of the ending."""
    chance, sentences = random.Random(7), []
    for _ in range(tokens // 8):
        words = {name: chance.choice(choices) for name, choices in WORDS.items()}
        sentences.append(chance.choice(SENTENCES).format(**words))
    ids, ending = tokenizer([" ".join(sentences), ENDING])["input_ids"]
    return tokenizer.decode([*ids[: max(tokens - len(ending), 0)], *ending])
