"""Settings of torch for the steps of a stream."""

from __future__ import annotations

from costream.core.errors import UsageError
from costream.runtime.stop import loading


def prepare_torch(threads: int | None = 1) -> None:
    """Set the number of threads of torch (None: leave it) and what makes steps fast.

    Denormal numbers are flushed to zero: they make a product 10 to 170 times slower and carry no
    information. Freed memory is kept, and so are the times of ways to compute the same, in the
    user's cache. One thread is the default, as a vector-matrix product ends before a second thread
    wakes up: two made a step up to 45 times slower on a busy machine.

    Raises UsageError if ``threads`` is not a number of threads.
    """
    with loading():
        import numpy as np
        import torch

        from costream.models.kept_times import KeptTimes
        from costream.nn.allocator import keep_freed_memory
        from costream.nn.choices import choices

    if threads is not None:
        try:
            torch.set_num_threads(threads)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"{threads!r} is not a number of threads", where="threads") from error
    for kind in (np.float32, np.float64):  # else NumPy 1 warns later that denormals are flushed
        np.finfo(kind)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    choices.keep_in(KeptTimes())
