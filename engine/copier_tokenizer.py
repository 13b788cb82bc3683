"""Text of the built-in `copier`: byte-level BPE, learned in code from a list of common words.

Lossless for every string, since all 256 bytes are pieces. Learned anew in each process from
`english_words.txt` (a tenth of a second, no download), deterministic. Canary words and code
alphabets play no part in it. A line end is always a piece of its own, so that "the text ends a
line" is one token id.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
OPENING_PIECE = "The"
BOS_PIECE = "<|begin|>"
EOS_PIECE = "<|end|>"
NEWLINE_PIECE = "Ċ"  # how byte-level BPE writes "\n"
PLACEHOLDER_PIECE = "Ā"  # and the byte 0; id 0, an ordinary piece

# Two bytes each; as single pieces, words in these scripts are no longer than unknown English ones.
LETTERS = "".join(
    char
    for first, last in ((0xC0, 0xFF), (0x391, 0x3C9), (0x410, 0x44F))
    for char in map(chr, range(first, last + 1))
    if char.isalpha()
)
LETTER_WEIGHT = 200  # enough to be learned before the rarest words are joined

# Contents one a line and nothing behind the last: the copier continues what it is given, so a
# header after the last message would only hide the words that it has to look for.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
)


class CopierCodec:
    """Text to token ids and back: BOS before every prompt, never an EOS or BOS out of text."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_str(_trained_json())
        self.bos_token_id = self.token_id(BOS_PIECE)
        self.eos_token_id = self.token_id(EOS_PIECE)
        self.newline_token_id = self.token_id(NEWLINE_PIECE)
        self.opening_token_id = self.token_id(OPENING_PIECE)

    def encode(self, text: str) -> list[int]:
        """Return BOS and the pieces of `text`; "<|end|>" in it is text like any other."""
        pieces: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos_token_id, *pieces]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text, without BOS and EOS; broken UTF-8 shows as replacement characters."""
        control = (self.bos_token_id, self.eos_token_id)
        text: str = self.tokenizer.decode([index for index in token_ids if index not in control])
        return text

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the contents of all messages, one a line, with nothing behind the last."""
        return self.encode("\n".join(message["content"] for message in messages))

    def token_id(self, piece: str) -> int:
        """Return the id of a piece, written as byte-level BPE writes it."""
        index = self.tokenizer.token_to_id(piece)
        assert index is not None, f"no piece {piece!r}"
        return int(index)


@cache
def _trained_json() -> str:
    """Learn the merges and put the placeholder first; returned as the text of a tokenizer.json."""
    learner = _blank(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 2,  # BOS and EOS follow
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_corpus(), trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    pieces.remove(PLACEHOLDER_PIECE)
    ordered = [PLACEHOLDER_PIECE, *pieces, BOS_PIECE, EOS_PIECE]
    assert len(ordered) == VOCAB_SIZE, "the word list is too short for the vocabulary"
    vocab = {piece: index for index, piece in enumerate(ordered)}
    merges = [tuple(pair) for pair in learned["merges"]]
    return str(_blank(models.BPE(vocab=vocab, merges=merges)).to_str())


def _blank(model: models.BPE) -> Tokenizer:
    """Wrap a model: line ends alone, then byte-level words with their leading space."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _corpus() -> Iterator[str]:
    """Yield every listed word as often as its rank deserves, frequent ones first."""
    text = resources.files("engine").joinpath("english_words.txt").read_text(encoding="utf-8")
    for rank, word in enumerate(dict.fromkeys(text.split())):
        often = 2 + 100 // (rank + 20)
        yield f" {word}" * (4 * often)
        yield f" {word.capitalize()}" * often
        for _ in range(often):
            yield word.capitalize()
    for _ in range(LETTER_WEIGHT):
        yield OPENING_PIECE
        yield from LETTERS
