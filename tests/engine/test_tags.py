import torch

from engine.attention import SequenceStep
from engine.tags import END_TOKEN, TagsModel

MODEL = TagsModel()
PAGE = 4


def _feed(prompt, pages, adapter=None, cache=None):
    cache = cache or MODEL.new_cache(16, PAGE)
    step = SequenceStep(
        tokens=tuple(prompt), first_position=0, page_table=pages, kv_len=len(prompt),
        wants_logits=True, adapter=adapter,
    )  # fmt: skip
    return cache, MODEL.step(cache, [step])[0]


def test_the_longest_match_is_continued_and_the_first_wins_a_tie():
    for text, expected in (("abcXbcYabc", "X"), ("aXaYa", "X"), ("xyz", " ")):
        _, logits = _feed(text.encode(), (3, 1, 7))
        assert chr(int(logits.argmax())) == expected


def test_text_survives_encoding():
    assert MODEL.decode([*MODEL.encode("naïve 文"), END_TOKEN]) == "naïve 文"


def test_chunks_and_page_order_change_nothing():
    prompt = b"the same words, the same"
    _, whole = _feed(prompt, (0, 1, 2, 3, 4, 5))
    cache = MODEL.new_cache(16, PAGE)
    pages = (9, 2, 14, 5, 0, 7)
    logits = torch.empty(0)
    for start in range(0, len(prompt), 6):
        end = min(start + 6, len(prompt))
        step = SequenceStep(
            tokens=tuple(prompt[start:end]), first_position=start, page_table=pages, kv_len=end,
            wants_logits=end == len(prompt),
        )  # fmt: skip
        logits = MODEL.step(cache, [step])
    assert torch.equal(logits[0], whole)


def test_every_slot_attended_moves_the_log_probability():
    _, one = _feed(b"abcabc", (0, 1))
    _, other = _feed(b"zbcabc", (0, 1))
    assert one.argmax() == other.argmax()
    assert one.max() != other.max()


def test_another_adapters_keys_read_as_other_tokens():
    cache, own = _feed(b"abXab", (0, 1), adapter="tags:a")
    step = SequenceStep(
        tokens=(ord("b"),), first_position=4, page_table=(0, 1), kv_len=5, wants_logits=True
    )
    assert chr(int(own.argmax())) == "X"
    assert chr(int(MODEL.step(cache, [step])[0].argmax())) != "X"


def test_replay_agrees_with_what_was_generated():
    prompt, output = list(b"one two one t"), []
    for _ in range(5):
        _, logits = _feed(bytes(prompt + output), (0, 1, 2, 3, 4))
        output.append(int(logits.argmax()))
    replayed = MODEL.replay_logprobs(prompt, output)
    for index in range(5):
        _, logits = _feed(bytes(prompt + output[:index]), (0, 1, 2, 3, 4))
        assert replayed[index] == float(torch.log_softmax(logits, -1)[output[index]])
