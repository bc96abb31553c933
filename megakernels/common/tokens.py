"""Text to tokens and back: a checkpoint's tokenizer, or bytes where there is none."""

from pathlib import Path

from megakernels.common.safetensors import CheckpointError


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

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens."""
        return str(self._tokenizer.decode(tokens))
