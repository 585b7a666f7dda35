"""A frozen encoder's outputs, cached under everything that determines them, to the same bits."""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr.files import cache_root, keep, kept_in
from pfedlora_flwr.models.linear import maker_of_cpu
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.training.loop import Samples, infer, mixed_precision

_VERSION = 1  # of the files' layout
_LIBRARIES = {"hf": "transformers"}
"""By the first word of an encoder's base, where it is not the library's own name."""


def kept(encoder: Whole, samples: Samples, precision: str) -> Tensor:
    """A frozen encoder's outputs, [n, width], where the samples are. Raises UserError if the cache
    cannot be written."""
    device = samples.labels.device
    file = _file(encoder, samples, precision)
    with kept_in(file):
        if file.exists():
            return torch.from_numpy(np.load(file)).to(device)
        with mixed_precision(precision, device):
            outputs = infer(encoder.encode, samples)
        keep(file, outputs.cpu().numpy())
    return outputs


def _file(encoder: Whole, samples: Samples, precision: str) -> Path:
    """Where the outputs are kept: another file for another encoder, image size, normalisation,
    precision, version of a library, kind of machine, or samples."""
    device = samples.labels.device
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {maker_of_cpu()}"
    word = encoder.base.partition(":")[0]
    library = sys.modules.get(_LIBRARIES.get(word, word))  # which built the encoder here
    versions = torch.__version__, getattr(library, "__version__", "")
    told = (encoder.base, encoder.place, encoder.side, precision, machine, *versions)
    digest = hashlib.sha256(repr((_VERSION, *told)).encode())
    for tensor in (samples.inputs, samples.scale, samples.shift):
        if tensor is not None:
            array = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.data)
    name = digest.hexdigest()
    return cache_root() / "outputs" / name[:2] / f"{name[2:]}.npy"
