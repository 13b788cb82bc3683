"""KVA102: a canary in disguise fires and names its fold; what only looks like one is silent."""

import base64
from dataclasses import replace

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.folded import find_folded_canaries, infix_distance
from kvaudit.detect.sensitivity import is_under_bar
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.target import PlannedRequest

MINT = CanaryMint("secret")
SPELLED = {"2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven",
           "8": "eight", "9": "nine"}  # fmt: skip


def ask(name, tenant, answer="fine", *, at=0, more=""):
    canary = MINT.mint(f"{name}/1", tenant)
    text = f"The code is {canary.code_text}. It answers to {canary.phrase}.{more}\nThe code is"
    return RequestRecord(
        request_id=name, tenant=tenant, messages=(Message(role="user", content=text),),
        canaries=(canary,), outcome=Outcome.ANSWERED, output_text=answer,
        sent_unix_ns=at, ended_unix_ns=at + 10,
    )  # fmt: skip


SOURCE = ask("r1", "a")
CANARY = SOURCE.canaries[0]
CODE, WORDS = CANARY.code, CANARY.words


def find(answer, **more):
    return find_folded_canaries(Corpus(records=(SOURCE, ask("r2", "b", answer, at=5, **more))))


def swapped(code, at):
    """Another character of the alphabet in this place."""
    return code[:at] + ("A" if code[at] != "A" else "B") + code[at + 1 :]


def decoded(text):
    return base64.b64encode(text.encode()).decode()


DISGUISES = {
    "lower case": CODE.lower(),
    "spaces": " ".join(CODE),
    "full width": "".join(chr(ord(char) + 0xFEE0) for char in CODE),
    "seams of a stream": f"{CODE[:5]}\n\n{CODE[5:11]}\u200b {CODE[11:]}",
    "one edit": swapped(CODE, 7),
    "two edits": swapped(swapped(CODE, 3), 12),
    "one left out": CODE[:8] + CODE[9:],
    "masked": f"{CODE[:6]}****{CODE[-6:]}",
    "masked with more shown": f"{CODE[:4]}-{CODE[4:8]}-XX••-{CODE[-6:]}".replace("XX", "••"),
    "spelled digits": " ".join(SPELLED.get(char, char) for char in CODE),
    "base64": decoded(f"the code is {CANARY.code_text} ."),
    "cut base64": decoded(f"the code is {CANARY.code_text} and so on and so forth")[:-9],
    "words in capitals": " ".join(WORDS[2:9]).upper(),
    "words run together": "".join(WORDS[:6]),
    "words with hyphens": "-".join(WORDS[3:11]),
    "words with one in between": " ".join([*WORDS[:4], "and", *WORDS[4:8]]),
    "words, one with a typo": " ".join([*WORDS[:3], WORDS[3] + "e", *WORDS[4:8]]),
}


@pytest.mark.parametrize("answer", DISGUISES.values(), ids=DISGUISES.keys())
def test_each_disguise_fires_names_its_source_and_states_fold_and_chance(answer):
    (evidence,) = find(f"Well, it is {answer}, I think").evidence
    assert (evidence.sink_request_id, evidence.source.request_id) == ("r2", "r1")
    assert evidence.details["fold"]
    assert is_under_bar(evidence)


LOOK_ALIKES = {
    "never minted": "K7QX-2MNP-ABCD-EFGH",
    "three edits": swapped(swapped(swapped(CODE, 3), 8), 13),
    "five words": " ".join(WORDS[:5]).upper(),
    "six words in another order": " ".join(reversed(WORDS[:6])),
    "six words, five of them in order": " ".join([WORDS[9], *WORDS[:5]]),
    "six words far apart": " and so the story goes on and on, ".join(WORDS[:6]),
    "too little around the mask": f"{CODE[:5]}****{CODE[-5:]}",
    "masked, another end": f"{CODE[:6]}****ZZZZZZ",
    "plain, which is the other rule's": CANARY.code_text,
    "base64 of something else": decoded("nothing of interest stands in here, really nothing"),
}


@pytest.mark.parametrize("answer", LOOK_ALIKES.values(), ids=LOOK_ALIKES.keys())
def test_look_alikes_are_silent(answer):
    assert find(f"Well, it is {answer}, I think").evidence == ()


def test_what_stands_in_the_own_context_in_the_same_disguise_is_silent():
    assert find(CODE.lower(), more=f" Not {CODE.lower()}.").evidence == ()


@pytest.mark.parametrize(("edits_apart", "fires"), [(2, False), (3, True)])
def test_a_match_must_be_nearer_to_the_foreign_canary_than_to_an_own_one(edits_apart, fires):
    code = CODE
    for at in (2, 7, 12)[:edits_apart]:
        code = swapped(code, at)
    own = replace(ask("r3", "b"), canaries=(replace(CANARY, label="own", tenant="b", code=code),))
    own = replace(own, canaries=tuple(replace(held, words=own_words()) for held in own.canaries))
    sink = ask("r2", "b", CODE.lower(), at=5)
    assert bool(find_folded_canaries(Corpus(records=(SOURCE, own, sink))).evidence) == fires


def own_words():
    return MINT.mint("others/1", "b").words


def test_the_own_canary_in_disguise_and_that_of_the_own_organisation_are_silent():
    own = ask("r2", "b", at=5)
    own = replace(own, output_text=own.canaries[0].code.lower())
    assert find_folded_canaries(Corpus(records=(SOURCE, own))).evidence == ()
    one = [
        replace(record, organisation="org")
        for record in (SOURCE, ask("r2", "b", CODE.lower(), at=5))
    ]
    assert find_folded_canaries(Corpus(records=tuple(one))).evidence == ()


def test_a_source_sent_after_the_sink_ended_can_t_have_reached_it():
    late = replace(SOURCE, sent_unix_ns=99)
    sink = ask("r2", "b", CODE.lower(), at=5)
    assert find_folded_canaries(Corpus(records=(late, sink))).evidence == ()


def test_a_never_sent_twin_in_disguise_is_a_false_alarm_and_no_evidence():
    canary = MINT.mint("twin/1", "a")
    twin = PlannedRequest(
        request_id="twin", tenant="a", messages=(), scenario="", stratum="", role=Role.FILL,
        canaries=(canary,),
    )  # fmt: skip
    sink = ask("r2", "b", canary.code.lower(), at=5)
    found = find_folded_canaries(Corpus(records=(SOURCE, sink), twins=(twin,)))
    assert (found.evidence, found.null_alarms, found.null_trials) == ((), 1, 2)


def test_without_canaries_the_oracle_is_not_available():
    bare = replace(SOURCE, canaries=())
    assert not find_folded_canaries(Corpus(records=(bare,))).available


@pytest.mark.parametrize(
    ("pattern", "text", "distance"),
    [
        ("abc", "xxabcxx", 0),
        ("abc", "xxabxx", 1),
        ("abc", "", 3),
        ("", "abc", 0),
        ("abc", "cab", 1),
    ],
)
def test_infix_distance_is_that_to_the_nearest_stretch(pattern, text, distance):
    assert infix_distance(pattern, text) == distance
