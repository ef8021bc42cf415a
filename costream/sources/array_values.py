"""Arrays from values that were handed over one by one, and errors about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError

Values = npt.NDArray[Any]
WHERE = "frame"  # in messages


def as_array(value: Any) -> Values:
    """Return a value as an array. Raises UsageError if it cannot be converted."""
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if value.is_floating_point() and value.element_size() < 4:  # NumPy has no bfloat16
            value = value.float()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and (array.dtype.kind != "U" or array.ndim):
        raise UsageError(f"not an array of numbers, but {type(value).__name__}", where=WHERE)
    return array


def shape_error(value: Values, what: str, hint: str) -> UsageError:
    """Return the error for an array of another shape or type; ``what``: what is expected."""
    shape = ", ".join(map(str, value.shape))
    return UsageError(f"{what}; this is {value.dtype} [{shape}]", where=WHERE, hint=hint)
