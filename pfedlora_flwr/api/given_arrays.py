"""Arrays, tensors, data frames and lists as NumPy reads them: copied, and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pfedlora_flwr.data.arrays import as_array
from pfedlora_flwr.errors import UserError, first_line

SCALARS = (type(None), bool, int, float, complex, str, bytes)
_OF_NUMPY = (torch.float16, torch.float32, torch.float64)


def own(part: Any) -> Any:
    """A copy of an array, unless it cannot be written to, as a memory-mapped one; else a list of
    such copies."""
    if isinstance(part, SCALARS) or (isinstance(part, np.ndarray) and not part.flags.writeable):
        return part
    if isinstance(part, Tensor):
        return detached(part).clone()
    if hasattr(part, "__array__") or hasattr(part, "toarray") or not isinstance(part, Iterable):
        return deepcopy(part)
    return [own(one) for one in part]


def detached(tensor: Tensor) -> Tensor:
    """The tensor as NumPy reads it: without its gradient, on the CPU, of bfloat16 as float32."""
    tensor = tensor.detach().cpu()
    known = not tensor.is_floating_point() or tensor.dtype in _OF_NUMPY
    return tensor if known else tensor.float()


def array_of(where: str, value: Any) -> npt.NDArray[Any]:
    """An array, a tensor, a data frame or a list as an array. Raises UserError for what is none,
    such as rows of different lengths."""
    with made_array(where):
        return as_array(where, _readable(value))


def _readable(value: Any) -> Any:
    """The value with its tensors as NumPy reads them."""
    if isinstance(value, list | tuple):
        return [detached(one) if isinstance(one, Tensor) else one for one in value]
    return detached(value) if isinstance(value, Tensor) else value


@contextmanager
def made_array(where: str) -> Iterator[None]:
    """What NumPy and PyTorch raise within becomes a UserError."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{where} cannot be made an array: {first_line(str(error))}") from None


def fingerprint(part: Any) -> str:
    """Its type, shape and a hash of its bytes; of texts and objects the texts."""
    array = np.asarray(_readable(part))
    if array.dtype.kind in "OU":
        return json.dumps([str(one) for one in array.ravel()])
    held = np.ascontiguousarray(array.astype("i8") if array.dtype.kind in "mM" else array)
    return f"{array.dtype.str} {array.shape} {hashlib.sha256(held.data).hexdigest()}"
