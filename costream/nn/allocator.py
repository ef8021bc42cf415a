"""Memory retention of the C library's allocator."""

from __future__ import annotations

import torch

_MEBIBYTE = 1 << 20


def keep_freed_memory() -> None:
    """Make this process reuse the memory of freed tensors.

    The GNU C library takes large blocks from the system and returns them when they are freed,
    and the system clears every page again: where a step needs several tensors of a megabyte, this
    was found to double its time. When the library frees a block, it sets the size up to which it
    retains memory to the size of that block (32 MiB at most); so this function frees one. It has
    no effect with other C libraries.
    """
    torch.empty(30 * _MEBIBYTE, dtype=torch.uint8)
