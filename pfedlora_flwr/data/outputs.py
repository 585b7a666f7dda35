"""A frozen encoder's outputs on a client's samples: computed once, and cached under everything that
determines them, to the same bits."""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pfedlora_flwr.data.cache import cache_root, keep, kept_in
from pfedlora_flwr.data.local import LocalData
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.linear import maker_of_cpu
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.pretrained import frozen_encoder, with_outputs
from pfedlora_flwr.training.flops import count_operations
from pfedlora_flwr.training.loop import Samples, infer, mixed_precision

_VERSION = 1  # of the files' layout
_LIBRARIES = {"hf": "transformers"}
"""By the first word of an encoder's base, where it is not the library's own name."""
PHASE = "features"
"""Of a visit's operations: those of the encoder, once a client."""
_COUNTED = WeakKeyDictionary[nn.Module, dict[tuple[object, ...], int]]()
"""One sample's, by encoder and shape: all clients of a process share the encoder."""


def with_outputs_kept(
    model: nn.Module, data: LocalData, e: Experiment, *, train: bool = True, evaluated: bool = True
) -> LocalData:
    """The data with the outputs of the model's encoder, where that is wholly frozen: from the
    cache, or computed and kept there. As it is if there is no such encoder, or where images are
    augmented.

    train, evaluated: which parts are used. Raises UserError if the cache cannot be written.
    """
    encoder = frozen_encoder(model)
    if encoder is None or e.augment:
        return data
    parts = {
        part: with_outputs(samples, encoder, kept(encoder, samples, e))
        for part, wants in {"train": train, "validation": evaluated, "test": evaluated}.items()
        if wants and len(samples := getattr(data, part))
    }
    return replace(data, **parts)


def operations(model: nn.Module, data: LocalData, e: Experiment) -> dict[str, int]:
    """What the outputs of the training part cost, as a phase of the visit in which a client first
    needs them, whether they are in the cache or not; empty if there are none to keep."""
    encoder = frozen_encoder(model)
    if encoder is None or e.augment:
        return {}
    one = data.train.batch(slice(0, 1))
    counts = _COUNTED.setdefault(encoder.module, {})
    of = encoder.side, one.shape, one.dtype, one.device
    if of not in counts:
        with torch.no_grad(), count_operations() as counted:
            encoder.encode(one)
        counts[of] = counted.forward
    return {PHASE: counts[of] * len(data.train)}


def kept(encoder: Whole, samples: Samples, e: Experiment) -> Tensor:
    """[n, width], where the samples are."""
    device = samples.labels.device
    file = _file(encoder, samples, e)
    with kept_in(file):
        if file.exists():
            return torch.from_numpy(np.load(file)).to(device)
        with mixed_precision(e.precision, device):
            outputs = infer(encoder.encode, samples)
        keep(file, outputs.cpu().numpy())
    return outputs


def _file(encoder: Whole, samples: Samples, e: Experiment) -> Path:
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
    told = (encoder.base, encoder.place, encoder.side, e.precision, machine, *versions)
    digest = hashlib.sha256(repr((_VERSION, *told)).encode())
    for tensor in (samples.inputs, samples.scale, samples.shift):
        if tensor is not None:
            array = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.data)
    name = digest.hexdigest()
    return cache_root() / "outputs" / name[:2] / f"{name[2:]}.npy"
