"""Everyday notes, the sentences of short documents: what a small model reads with ease.

Every few words of a note are drawn, so two documents share turns of phrase and nothing longer.
"""

import random

from probes.words import ADJECTIVES, DAYS, NOUNS, PEOPLE, PLACES, THINGS


def note(rng: random.Random) -> str:
    """Return one sentence."""
    return rng.choice((_meeting, _order, _question, _stock, _closing, _keys))(rng)


def _meeting(rng: random.Random) -> str:
    one, other = rng.sample(PEOPLE, 2)
    place = f"{rng.choice(PLACES)} the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    return f"{one} will meet {other} {place} on {rng.choice(DAYS)} at {rng.randrange(7, 22)}."


def _order(rng: random.Random) -> str:
    one, other = rng.sample(PEOPLE, 2)
    things = f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)} for the {rng.choice(NOUNS)}"
    return f"The {things} were ordered by {one}, and {other} pays for them."


def _question(rng: random.Random) -> str:
    things = f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}"
    return (
        f"{rng.choice(PEOPLE)} asked whether the {things} can reach the {rng.choice(NOUNS)}"
        f" before {rng.choice(DAYS)}."
    )


def _stock(rng: random.Random) -> str:
    things = f"{rng.randrange(12, 100)} {rng.choice(THINGS)}"
    return (
        f"There are {things} left in the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}, and"
        f" {rng.choice(PEOPLE)} has counted them twice."
    )


def _closing(rng: random.Random) -> str:
    one, other = rng.sample(PEOPLE, 2)
    return (
        f"Please tell {one} that the {rng.choice(NOUNS)} stays closed while {other} repairs the"
        f" {rng.choice(ADJECTIVES)} {rng.choice(THINGS)}."
    )


def _keys(rng: random.Random) -> str:
    one, other = rng.sample(PEOPLE, 2)
    return (
        f"{one} keeps the keys of the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} until {other}"
        f" returns from the {rng.choice(NOUNS)}."
    )
