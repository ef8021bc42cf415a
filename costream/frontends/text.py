"""Words as tokens: hashed sequences of characters, without a vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor, nn

from costream.frontends.base import frontend
from costream.nn.state import State, zeros
from costream.records import TextLine

LONGEST = 12  # characters of a word; longer ones, as of scripts without spaces, are divided
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
    characters in lower case, with marks for both ends, and the whole word are hashed into a table,
    so that no vocabulary is needed and unknown words have a token, too.

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
        bag = F.embedding_bag(x.reshape(-1, GRAMS), self.table.weight, mode="mean", padding_idx=0)
        rows: Tensor = bag.view(*x.shape[:-1], self.token_width)
        return rows

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
    """Return a word in pieces of at most LONGEST characters; of a number only that it is one."""
    if word.isdecimal():
        return ["0"]
    return [word[k : k + LONGEST] for k in range(0, len(word), LONGEST)]
