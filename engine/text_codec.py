"""TextCodec: text to token ids and back, for any model folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer

from kvaudit.errors import EngineError


class TextCodec(Protocol):
    """What the engine needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with whatever the model wants in front."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text without control tokens."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a chat, ready for the answer."""
        ...


class FolderCodec:
    """The tokenizer of a Hugging Face model folder; no code out of the folder is run."""

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise EngineError(
                f"the folder `{folder}` holds no tokenizer that can be loaded: {error}",
                hint="a `tokenizer.json` beside the weights is enough",
            ) from error

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own idea of the end."""
        index: int | None = self._tokenizer.eos_token_id
        return index

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, BOS in front where the tokenizer adds one."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=True)["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text without special tokens, spaces as the model wrote them."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the chat in the folder's template; without one, the contents one a line."""
        if self._tokenizer.chat_template is None:
            return self.encode("\n".join(message["content"] for message in messages))
        rendered: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return ids
