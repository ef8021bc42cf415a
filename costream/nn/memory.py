"""The C library's habit of giving memory back."""

from __future__ import annotations

import torch

_MEBIBYTE = 1 << 20


def keep_freed_memory() -> None:
    """Make this process keep the memory of freed tensors for the next ones.

    The GNU C library takes large blocks from the system and gives them back when they are freed,
    and the system clears every page anew: where a step needs several tensors of a megabyte, that
    was found to double its time. When it frees one block it takes its size (32 MiB at most) as
    the size up to which it keeps memory from then on; so this frees one. Nothing happens with
    other C libraries.
    """
    torch.empty(30 * _MEBIBYTE, dtype=torch.uint8)
