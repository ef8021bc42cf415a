"""How torch is set up for steps: at start-up, never at import."""

from __future__ import annotations


def prepare_torch(threads: int = 1) -> None:
    """Set threads, flush denormals to zero, and keep freed memory.

    One row times a matrix is over before a second thread wakes up: two threads made a step up
    to 45x slower on a busy machine. Denormal numbers make a product 10-170x slower and carry
    nothing.
    """
    import torch

    from costream.nn.memory import keep_freed_memory

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
