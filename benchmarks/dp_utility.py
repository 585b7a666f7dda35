"""Accuracy under differential privacy of whole clients, beside its controls, for docs/results/dp.

    pfedlora weights timm:tf_efficientnet_lite0 --output lite0.safetensors
    python -m benchmarks.dp_utility CIFAR10 CIFAR100 lite0.safetensors OUTPUT [--seeds 3]

CIFAR10 and CIFAR100 are the folders of the datasets' `train.parquet`. A frozen encoder's features
of 20,000 CIFAR-10 images are the clients' data; 2,000 CIFAR-100 images are public, and give the
adapter's first matrix. Runs that are in OUTPUT already are not done again. It writes
OUTPUT/runs.csv."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.dp_runs import fill, first_images, of_dp
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora_plus import PFedLoRAPlus
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit

WIDTH, IMAGES, PUBLIC, SIDE = 1280, 20_000, 2_000, 96
CLIP = 0.25
ADAPTER: dict[str, Any] = {
    "adapter.predict": "sum",
    "adapter.rows": "samples",
    "adapter.hidden-dim": 16,
}
KEYS: dict[str, Any] = {
    "models": "benchmarks.dp_utility:Head",
    "clients": 100,
    "participation": 0.5,
    "partition.kind": "dirichlet",
    "partition.alpha": 0.3,
    "partition.samples-per-client": 30,
    "rounds": 10,
    "local-epochs": 5,
    "batch-size": 16,
    "lr": 0.003,
    "evaluate-initial": False,
    "evaluate-every": 10,
}


class Head(nn.Module):
    """One linear layer on features [B, 1280]: what the frozen encoder gave."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Identity()
        self.head = nn.Linear(WIDTH, classes)


class NoiseAlone(PFedLoRAPlus):
    """A control: clients train as ever, and send back what they received. The shared adapter is the
    sum of the rounds' noise. What it gains, no client's data has given."""

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        sent = super().local_update(model, received, data, visit)
        return Upload(received, sent.samples)


def cells(data: Path, basis: Path) -> dict[str, dict[str, Any]]:
    """The keys of each cell by its name."""
    adapter = ADAPTER | {"adapter.basis": str(basis)}
    base = KEYS | {"dataset": f"npz:{data}"}
    own = base | adapter | {"method": "pfedlora_plus"}
    options = " ".join(f"{name}={value}" for name, value in adapter.items())
    alone = base | {"method": "benchmarks.dp_utility:NoiseAlone", "method-options": options}
    clip = {"dp.clip": CLIP}
    return {
        "eps8": own | clip | {"dp.epsilon": 8},
        "start": own | {"sharing": "start"},
        "none": own | {"sharing": "none"},
        "eps2": own | clip | {"dp.epsilon": 2},
        "inf": own | clip | {"dp.noise": 0},
        "plain": own,
        "noise8": alone | clip | {"dp.epsilon": 8},
        "noise2": alone | clip | {"dp.epsilon": 2},
    }


def features(folder: Path, count: int, weights: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The encoder's features [count, 1280] of a dataset's first images, and their labels."""
    import timm
    from safetensors.torch import load_file

    model: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    model.load_state_dict(load_file(weights))
    settings = timm.data.resolve_data_config({}, model=model)
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    pixels, labels = first_images(folder, count)
    found = []
    with torch.inference_mode():
        for first in range(0, count, 100):
            batch = torch.from_numpy(pixels[first : first + 100]).permute(0, 3, 1, 2).float() / 255
            batch = torch.nn.functional.interpolate(
                (batch - mean) / std, size=SIDE, mode="bilinear", antialias=True
            )
            found.append(model.forward_head(model.forward_features(batch), pre_logits=True).numpy())
    return np.concatenate(found), labels


def prepare(cifar10: Path, cifar100: Path, weights: Path, output: Path) -> tuple[Path, Path]:
    """The clients' data, centred and scaled as the public features are, and the public basis."""
    from pfedlora_flwr.models import basis

    data, directions = output / "features.npz", output / "basis.safetensors"
    if not directions.exists():
        output.mkdir(parents=True, exist_ok=True)
        public, _ = features(cifar100, PUBLIC, weights)
        inputs, labels = features(cifar10, IMAGES, weights)
        mean, std = public.mean(0), public.std(0) + 1e-6
        np.savez(data, inputs=((inputs - mean) / std).astype(np.float32), labels=labels)
        about = {"models": "lite0", "inputs": "CIFAR-100"}
        basis.write(directions, [torch.from_numpy((public - mean) / std)], about)
    return data, directions


def main() -> None:
    cli = argparse.ArgumentParser()
    for name in ("cifar10", "cifar100", "weights", "output"):
        cli.add_argument(name, type=Path)
    cli.add_argument("--seeds", type=int, default=3)
    asked = cli.parse_args()

    torch.set_num_threads(1)
    output = asked.output.resolve()
    data, basis = prepare(asked.cifar10, asked.cifar100, asked.weights, output)
    names = "noise", "participations_max"
    fill(
        output,
        cells(data, basis),
        asked.seeds,
        lambda run: {name: of_dp(run, name) for name in names},
    )


if __name__ == "__main__":
    main()
