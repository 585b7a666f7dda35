"""Where clients train."""

from __future__ import annotations

import torch

from pfedlora_flwr.errors import UserError


def find_device(name: str) -> torch.device:
    """The training device; `auto` is cuda where there is one. Raises UserError when cuda is asked for and missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is 'cuda' and PyTorch sees no GPU; use device=cpu, or install a CUDA build of PyTorch")
    return torch.device(name)
