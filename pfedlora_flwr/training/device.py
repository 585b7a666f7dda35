"""Where clients train."""

from __future__ import annotations

import os

import torch

from pfedlora_flwr.errors import UserError

GPU_SHARE = "PFEDLORA_GPU_SHARE"
"""The environment variable that says how much of a GPU's memory this process may take, in (0, 1]; where there is none, all of it."""


def find_device(name: str) -> torch.device:
    """The training device; `auto` is cuda where there is one. Raises UserError when cuda is asked for and missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is 'cuda' and PyTorch sees no GPU; use device=cpu, or install a CUDA build of PyTorch")
    return torch.device(name)


def memory_share() -> float:
    """What this process may take of its GPU's memory, as who started it says."""
    return float(os.environ.get(GPU_SHARE, "1"))
