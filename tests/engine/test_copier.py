import hashlib
import json
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.copier import MAX_POSITIONS, build_copier, token_codes
from engine.copier_tokenizer import VOCAB_SIZE, CopierCodec
from kvaudit.canary import CODE_ALPHABET, CanaryMint, word_list

SENTENCE = (
    "the meeting of the committee was moved to another room because rain came through roof"
    " and nobody in that building had thought about it before this winter"
)
FILLER = SENTENCE.split()


@pytest.fixture(scope="module")
def codec():
    return CopierCodec()


@pytest.fixture(scope="module")
def copier(codec):
    torch.set_num_threads(1)
    return build_copier(
        eos_token_id=codec.eos_token_id,
        bos_token_id=codec.bos_token_id,
        newline_token_id=codec.newline_token_id,
        opening_token_id=codec.opening_token_id,
    )


def document(codec, seed, token_count, *, words=None, alphabet=CODE_ALPHABET):
    """Return (prompt, value): canaries and filler one a line, then the stem of one canary."""
    rng = random.Random(seed)
    mint = CanaryMint(f"recall {seed}", words=words, alphabet=alphabet)
    lines, facts, length = [], [], 0
    while length < token_count or not facts:
        if rng.random() < 0.5 and len(facts) < 40:
            canary = mint.mint(f"fact {len(facts)}", "tenant")
            entity = " ".join(rng.sample(words or word_list(), 2))
            facts.append(
                (f"The access code of the {entity} is", f" {canary.phrase} {canary.code_text}.")
            )
            lines.append("".join(facts[-1]))
        else:
            lines.append("The " + " ".join(rng.choices(FILLER, k=rng.randrange(5, 14))) + ".")
        length += len(codec.encode(lines[-1] + "\n")) - 1
    stem, value = rng.choice(facts)
    return "\n".join([*lines, stem]), value


@torch.inference_mode()
def recalls(copier, codec, prompt, value):
    """Whether greedy decoding prints `value` and stops: every next token, given those before."""
    prompt_ids = codec.encode(prompt)
    wanted = [*codec.encode(value)[1:], codec.eos_token_id]
    logits = copier(
        input_ids=torch.tensor([prompt_ids + wanted]),
        use_cache=False,
        logits_to_keep=len(wanted) + 1,
    ).logits
    return logits[0, :-1].argmax(dim=-1).tolist() == wanted


def recall_count(copier, codec, *, token_count, documents, first_seed, **kinds):
    return sum(
        recalls(copier, codec, *document(codec, first_seed + index, token_count, **kinds))
        for index in range(documents)
    )


def test_values_are_recalled_and_the_answer_stops_at_160_tokens(copier, codec):
    assert recall_count(copier, codec, token_count=160, documents=40, first_seed=510_000) == 40


def test_values_are_recalled_and_the_answer_stops_at_600_tokens(copier, codec):
    assert recall_count(copier, codec, token_count=600, documents=15, first_seed=520_000) == 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token_count", "documents", "least"), [(160, 100, 99), (600, 100, 99), (2400, 100, 99)]
)
def test_values_are_recalled_at_any_length(copier, codec, token_count, documents, least):
    found = recall_count(
        copier, codec, token_count=token_count, documents=documents, first_seed=530_000
    )
    assert found >= least


@pytest.mark.slow
def test_values_are_recalled_at_7000_tokens(copier, codec):
    assert recall_count(copier, codec, token_count=7000, documents=20, first_seed=540_000) == 20


def test_another_word_list_and_alphabet_are_recalled_as_well(copier, codec):
    rng = random.Random(3)
    letters = "абвгдежзиклмнопрстуфхцчшщэюя"
    cyrillic = sorted({"".join(rng.choices(letters, k=rng.randrange(5, 9))) for _ in range(800)})
    kinds = {"words": cyrillic, "alphabet": letters}
    found = recall_count(copier, codec, token_count=400, documents=15, first_seed=550_000, **kinds)
    assert found == 15


def test_a_value_that_the_prompt_does_not_hold_is_not_recalled(copier, codec):
    prompt, value = document(codec, 560_000, 160)
    assert recalls(copier, codec, prompt, value)
    assert not recalls(copier, codec, prompt.replace(value, " nothing."), value)


# --- the exact matching, against an oracle on token lists -----------------------------------------


def lag_table(tokens, line_ends):
    """Return for each position the 16 lags that the layers find; None where line ends blur them."""
    line_end = line_ends[0]
    before = [line_end] * 16
    table = []
    for position, token in enumerate(tokens):
        lags = [line_end if token in line_ends else token]
        for step in (1, 2, 4, 8):
            source = position - step
            if source > 0 and tokens[source] in line_ends:
                lags += [line_end, *[None] * (step - 1)]
            else:
                lags += (table[source] if source >= 0 else before)[:step]
        table.append(lags)
    return table


def oracle(tokens, table, last, line_ends, eos_token_id):
    """Return what follows position `last` by the documented rule; None if two come close."""
    own = table[last]

    def suffix(position, *, wildcard):
        before = table[position][1:]
        for lag in range(9):
            if own[lag] is None or before[lag] is None:
                if not wildcard:
                    return lag
            elif own[lag] != before[lag]:
                return lag
        return 9

    surely = {position: suffix(position, wildcard=False) for position in range(1, last + 1)}
    best = max(surely.values())
    if best == 0:
        return None  # nothing matches: the least unlike context is continued
    # One mismatch with a long match behind it scores nearly as much as one more equal token.
    votes = {
        tokens[position]
        for position in range(1, last + 1)
        if suffix(position, wildcard=True) >= best - 1
    }
    if len(votes) > 1:
        return None
    token = votes.pop()
    return eos_token_id if token in line_ends else token


@torch.inference_mode()
def test_the_string_oracle_predicts_every_next_token(copier, codec):
    rng = random.Random(11)
    predicted, stops = 0, 0
    for _ in range(8):
        pool = [*rng.sample(range(VOCAB_SIZE - 2), 60), codec.newline_token_id]
        tokens = [codec.bos_token_id, *rng.choices(pool, k=20)]
        while len(tokens) < 300:  # random text with repeated stretches of 3 to 12 tokens
            start = rng.randrange(1, len(tokens) - 12)
            tokens += tokens[start : start + rng.randrange(3, 13)] + rng.choices(pool, k=2)
        printed = copier(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].argmax(-1)
        line_ends = (codec.newline_token_id, codec.bos_token_id)
        table = lag_table(tokens, line_ends)
        for end in range(40, len(tokens)):
            wanted = oracle(tokens, table, end, line_ends, codec.eos_token_id)
            if wanted is not None:
                predicted += 1
                stops += wanted == codec.eos_token_id
                assert printed[end] == wanted, f"after {tokens[end - 12 : end + 1]}"
    assert predicted > 800
    assert stops > 10


@torch.inference_mode()
def test_of_two_equal_contexts_the_more_recent_wins(copier, codec):
    text = f"The code is red.\n{SENTENCE}\nThe code is blue.\n{SENTENCE}\nThe code is"
    printed = copier(input_ids=torch.tensor([codec.encode(text)]), use_cache=False).logits[0, -1]
    assert codec.decode([int(printed.argmax())]) == codec.decode(codec.encode(" blue")[1:2])


@torch.inference_mode()
def test_a_line_end_prints_eos_and_nothing_else_does(copier, codec):
    text = "The key is in the box.\nThe door is shut.\nThe key is in the box"
    ids = codec.encode(text)
    logits = copier(input_ids=torch.tensor([[*ids, *codec.encode(".")[1:]]])).logits[0]
    assert codec.decode([int(logits[-2].argmax())]) == "."
    assert int(logits[-1].argmax()) == codec.eos_token_id
    assert (logits.argmax(-1) != codec.newline_token_id).all()


@torch.inference_mode()
def test_a_lone_placeholder_opens_a_line(copier, codec):
    logits = copier(input_ids=torch.tensor([[0]])).logits[0, 0]
    assert codec.decode([int(logits.argmax())]) == "The"


def test_codes_of_two_tokens_never_agree_above_a_quarter():
    codes = token_codes()
    correlation = (codes @ codes.T) / codes.shape[1]
    assert correlation.fill_diagonal_(0.0).max() == 0.25
    assert len({tuple(row) for row in codes[:, :16].tolist()}) == VOCAB_SIZE


def test_positions_reach_past_8192(copier):
    assert copier.config.max_position_embeddings == MAX_POSITIONS >= 8192


# --- the tokenizer -------------------------------------------------------------------------------


@given(st.text())
def test_decoding_what_was_encoded_gives_the_same_text(text):
    codec = CopierCodec()
    assert codec.decode(codec.encode(text)) == text


def test_control_pieces_in_a_prompt_are_text(codec):
    ids = codec.encode("<|end|><|begin|>")
    assert codec.eos_token_id not in ids
    assert codec.bos_token_id not in ids[1:]
    assert codec.decode(ids) == "<|end|><|begin|>"


def test_id_0_is_an_ordinary_piece(codec):
    assert codec.decode([0]) == "\x00"
    assert codec.encode("\x00 code")[1] == 0


def test_ordinary_english_words_are_one_or_two_pieces(codec):
    words = ["customer", "report", "window", "important", "company", "falcon", "machine", "code"]
    assert all(len(codec.encode(f" {word}")) - 1 <= 2 for word in words)


def test_a_chat_prompt_ends_in_the_last_message(codec):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The code is"},
    ]
    assert codec.encode_chat(messages) == codec.encode("Be brief.\nThe code is")


def test_the_tokenizer_is_the_same_in_every_process(codec):
    code = (
        "import hashlib; from engine.copier_tokenizer import CopierCodec;"
        "print(hashlib.sha256(CopierCodec().tokenizer.to_str().encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    ours = hashlib.sha256(codec.tokenizer.to_str().encode()).hexdigest()
    assert other == ours
    assert len(json.loads(codec.tokenizer.to_str())["model"]["vocab"]) == VOCAB_SIZE
