"""Words as tokens: hashed sequences of characters, or the vocabulary of a tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import TextLine
from costream.models.frontend import frontend
from costream.nn.state import State, zeros

LONGEST = 12  # characters of a word; longer words, as in scripts without spaces, are divided
GRAMS = 38  # sequences of up to three characters of the longest word, and the word itself
END = "\n"  # the token that ends a line
# Letters with their marks, digits, or other characters that stand together.
_WORDS = re.compile(r"[^\W\d_][^\s\d!-&(-/:-@\[-`{-~]*|\d+|(?:[^\w\s]|_)+")


@dataclass
class TextState(State):
    """Tokens so far of each stream."""

    steps: Tensor  # int64 [B]


@frontend("text", order=12)
class HashedWords(nn.Module):
    """Frontend for text: the token of a word is the mean of the vectors of its n-grams.

    As in Bojanowski et al., Enriching Word Vectors with Subword Information (2017): one to three
    characters in lower case, with marks for both ends, and the word are hashed into a table, so no
    vocabulary is needed and every word has a token.

    Args:
        token_width: of the vectors. ``buckets``: their number.
    """

    takes = "text"

    def __init__(self, token_width: int = 32, buckets: int = 3072) -> None:
        super().__init__()
        self.token_width, self.buckets = token_width, buckets
        self.table = nn.Embedding(buckets + 1, token_width, padding_idx=0)

    def prepare(self, item: TextLine) -> npt.NDArray[np.int64]:
        """Return the rows of the table for each token of a line, [m, GRAMS], 0: none."""
        words = [piece for word in _WORDS.findall(item.text.lower()) for piece in _pieces(word)]
        rows = [hashed(word, self.buckets) for word in [*words, *([END] if item.ends else [])]]
        return np.stack(rows) if rows else np.zeros((0, GRAMS), np.int64)

    def init_state(self, batch_size: int = 1) -> TextState:
        """Return the initial state of a batch of streams."""
        return TextState(zeros(batch_size, like=self.table.weight).long())

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [..., token_width] of rows of the table [..., GRAMS]."""
        rows = x.reshape(-1, x.shape[-1])
        bag = F.embedding_bag(rows, self.table.weight, mode="mean", padding_idx=0)
        tokens: Tensor = bag.view(*x.shape[:-1], self.token_width)
        return tokens

    def forward_step(self, x: Tensor, state: TextState) -> Tensor:
        """Take one token [B, GRAMS] of every stream, return it [B, token_width]."""
        state.steps += 1
        return self.forward(x)

    def forward_steps(self, x: Tensor, state: TextState) -> Tensor:
        """Take T tokens [B, T, GRAMS] of every stream, return them [B, T, token_width]."""
        state.steps += x.shape[1]
        return self.forward(x)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a token: 0, vectors are added."""
        return 0


@frontend("tokenizer", order=13)
class Tokenizer(HashedWords):
    """Frontend for text: the tokens of a ``tokenizer.json`` of Hugging Face, each with a vector.

    The file is part of the weights. Tokens that it adds at both ends of a text are left out;
    another token ends a line. Words that arrive one by one are divided one by one.

    Args:
        token_width: of the vectors. ``file``: the path of the tokenizer.json, for new weights;
            afterwards ``vocabulary``, its number of tokens, and ``size``, its bytes, are enough.
    """

    rules: Tensor

    def __init__(
        self,
        token_width: int = 32,
        vocabulary: int = 0,
        size: int = 0,
        file: str | None = None,
    ) -> None:
        rules = torch.zeros(size, dtype=torch.uint8)
        if file is not None:
            try:
                read = Path(file).read_bytes()
            except OSError as error:
                raise ModelError(f"cannot be read ({error.strerror})", where=file) from error
            encoder = _encoder(read)
            vocabulary, size = encoder.get_vocab_size(), len(read)
            rules = torch.frombuffer(bytearray(read), dtype=torch.uint8)
        if vocabulary < 1:
            raise ModelError("needs a file: frontend.file=tokenizer.json", where="tokenizer")
        super().__init__(token_width, vocabulary + 1)
        self._encoder: Any = None
        self.register_buffer("rules", rules)
        self.arguments = {"token_width": token_width, "vocabulary": vocabulary, "size": size}

    def prepare(self, item: TextLine) -> npt.NDArray[np.int64]:
        """Return the rows of the table for each token of a line, [m, 1]."""
        if self._encoder is None:
            self._encoder = _encoder(self.rules.cpu().numpy().tobytes())
        tokens = self._encoder.encode(item.text, add_special_tokens=False).ids
        rows = [k + 1 for k in tokens] + ([self.buckets] if item.ends else [])
        return np.array(rows, np.int64).reshape(-1, 1)


def _encoder(rules: bytes) -> Any:
    """Return the tokenizer of a tokenizer.json. ModelError if it or its library is unusable."""
    try:
        from tokenizers import Tokenizer as Encoder
    except ImportError as error:
        hint = "pip install 'costream[text]'"
        raise ModelError("a tokenizer.json needs tokenizers", hint=hint) from error
    try:
        return Encoder.from_buffer(rules)
    except Exception as error:  # the only class that the library raises
        raise ModelError(f"is not a tokenizer.json ({error})", where="tokenizer") from error


@lru_cache(maxsize=1 << 15)
def hashed(word: str, buckets: int) -> npt.NDArray[np.int64]:
    """Return the rows of a word of at most LONGEST characters, [GRAMS], from 1 on; 0: none."""
    marked = f"<{word}>"
    spans = (marked[k : k + n] for n in (1, 2, 3) for k in range(len(marked) - n + 1))
    grams = [word, *(gram for gram in spans if gram not in ("<", ">"))] if word != END else [END]
    out = np.zeros(GRAMS, np.int64)
    out[: len(grams)] = [crc32(gram.encode("utf-8", "replace")) % buckets + 1 for gram in grams]
    return out


def _pieces(word: str) -> list[str]:
    """Return a word in pieces of at most LONGEST characters; all numbers are the piece "0"."""
    if word.isdecimal():
        return ["0"]
    return [word[k : k + LONGEST] for k in range(0, len(word), LONGEST)]
