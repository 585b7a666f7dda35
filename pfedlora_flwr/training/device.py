"""The clients' device."""

from __future__ import annotations

import ctypes
import os
from typing import TypeVar

import torch
from torch import nn

from pfedlora_flwr.errors import UserError

Module = TypeVar("Module", bound=nn.Module)
GPU_SHARE = "PFEDLORA_GPU_SHARE"
"""The environment variable that says how much of a GPU's memory this process may take, in (0, 1];
if there is none, all of it."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def find_device(name: str) -> torch.device:
    """The training device; `auto` is cuda where there is one. Raises UserError when cuda is asked
    for and missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device is 'cuda' and PyTorch sees no GPU; use device=cpu, or install a CUDA build of"
            " PyTorch"
        )
    return torch.device(name)


def emulates_bf16(device: torch.device) -> bool:
    """Whether products in bf16 take many times as long there as those in fp32: on a processor
    without instructions for them."""
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def channels_last(module: Module) -> Module:
    """The module with its 4-D tensors, an image's convolutions among them, laid out channels last;
    others, such as a Conv3d's, stay."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return module


def keep_freed_memory() -> None:
    """Asks glibc to keep freed memory for the next tensors; otherwise the kernel clears new pages
    for every layer of every step. Other C libraries decide by themselves."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**25)
        mallopt(_M_TRIM_THRESHOLD, 2**30)


def memory_share() -> float:
    """What this process may take of its GPU's memory, as who started it says."""
    return float(os.environ.get(GPU_SHARE, "1"))
