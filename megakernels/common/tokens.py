"""Text to tokens and back: a checkpoint's tokenizer, or bytes where there is none."""

import json
from collections.abc import Callable
from pathlib import Path

from megakernels.common.safetensors import CheckpointError

TOKENIZER = "tokenizer.json"
# Where a checkpoint says which tokens end a text; the first file that does is right.
STOP_FILES = ("generation_config.json", "config.json", "tokenizer_config.json")


class ByteTokens:
    """Stands in for a tokenizer where there is none: a token per byte, generated tokens shown as numbers."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        return [byte % self._vocab for byte in text.encode()]

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens."""
        return " ".join(str(token) for token in tokens)


def stop_tokens(folder: Path) -> tuple[int, ...]:
    """Tokens that end a text, as the files beside the tokenizer say; none if they do not.

    Raises:
        CheckpointError: A file is damaged.
    """
    for name in STOP_FILES:
        try:
            said = json.loads((folder / name).read_text())
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise CheckpointError(folder / name, f"is no JSON: {error}", "Download it again.") from None
        for described in (said, said.get("text_config") or {}):
            ends = described.get("eos_token_id")
            if ends is not None:
                return tuple(ends) if isinstance(ends, list) else (int(ends),)
        text = said.get("eos_token")
        text = text.get("content") if isinstance(text, dict) else text
        if text and (folder / TOKENIZER).exists():
            token = Tokens(folder / TOKENIZER).number_of(text)
            return () if token is None else (token,)
    return ()


class Tokens:
    """The checkpoint's tokenizer."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers  # type: ignore[import-not-found]
        except ImportError:
            raise CheckpointError(
                path, "needs the tokenizers library", "pip install 'megascope[run]'."
            ) from None
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        return list(self._tokenizer.encode(text).ids)

    def number_of(self, text: str) -> int | None:
        """The token that is exactly this text, if there is one."""
        number = self._tokenizer.token_to_id(text)
        return None if number is None else int(number)

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens."""
        return str(self._tokenizer.decode(tokens))


def tokenizer_of(weights: Path | None, vocab: int, note: Callable[[str], None]) -> ByteTokens | Tokens:
    """The tokenizer beside the weights; without one bytes, which `note` is told."""
    if weights and (weights / TOKENIZER).exists():
        return Tokens(weights / TOKENIZER)
    note("no tokenizer with these weights: bytes of the prompt are its tokens, results are token numbers")
    return ByteTokens(vocab)
