"""Small pretrained models, written to files: what clients' models begin with, without a
download."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

CLASSES = 20
"""Of their own classifiers."""


def base(folder: Path, name: str = "test_resnet", seed: int = 0) -> str:
    """The name of one of timm's models for tests, with weights in a file of `folder`: random ones,
    with statistics of batch normalisation that are not the usual."""
    import timm

    torch.manual_seed(seed)
    module = timm.create_model(name, num_classes=CLASSES).train()
    side = module.pretrained_cfg["input_size"][1] if "vit" in name else 32
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(8, 3, side, side) * 2 + 1)
    file = folder / f"{name}-{seed}.safetensors"
    safetensors.torch.save_file(module.state_dict(), file)
    return f"timm:{name}:weights={file}"
