"""`pfedlora weights`: writes a file of initial weights for a client model by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors.torch

from pfedlora_flwr.files import check_replaceable, make_folder, write_atomically
from pfedlora_flwr.models import foreign


def write(name: str, source: Path | None, output: Path | None, *, overwrite: bool) -> list[str]:
    """Writes the weights of `name`, and says in lines what they are and how to use them. Raises
    UserError.

    source: a file with them, under whatever names; None: a package's, or the library's own.
    """
    target = output or Path(f"{name.partition(':')[2] or name}.safetensors")
    check_replaceable(target, overwrite=overwrite)
    found = foreign.find(name, source)
    make_folder(target.absolute().parent)
    # one entry: their order would be drawn at random
    about = {"about": json.dumps({"model": name, "from": found.origin, "licence": found.licence})}
    content = safetensors.torch.save(found.state, about)
    write_atomically(target, content)
    numbers = sum(tensor.numel() for tensor in found.state.values() if tensor.is_floating_point())
    mean, std = (
        ", ".join(f"{v:g}" for v in values) for values in (found.made.mean, found.made.std)
    )
    shape = "x".join(map(str, found.made.shape))
    return [
        f"{target}: {numbers:,} numbers, a classifier of {found.classes} classes",
        f"from: {found.origin}",
        f"licence: {found.licence}",
        f"made for: images of {shape}, mean {mean}, standard deviation {std}",
        f"sha256: {hashlib.sha256(content).hexdigest()}",
        f"key: models={name}:weights={target}",
    ]
