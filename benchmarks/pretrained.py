"""A visit with a pretrained model, trained whole, by its head or by LoRA, beside the same epoch in
a plain loop of PyTorch, timm and peft.

    python -m benchmarks.pretrained [--models tf_efficientnet_lite0,vit_tiny_patch16_224]
        [--samples 128] [--side 96] [--repeats 5]

One thread, batches of 32, SGD with momentum. The two sides run alternately in one process; medians
of CPU seconds, with the spread of their ratio. Peak memory is that of a process of its own for each
side. The weights are random ones in a file: speed does not depend on them. In the plain loop a
frozen encoder runs once for each image, too, and frozen batch normalisation rests."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.device import channels_last, keep_freed_memory
from pfedlora_flwr.training.loop import Samples

CLASSES, BATCH, RANK = 10, 32, 8
TARGETS = {"tf_efficientnet_lite0": ["conv_pw", "conv_pwl"], "vit_tiny_patch16_224": ["qkv"]}
TRAINED = ("all", "head", "lora")
SIDES = ("plain", "ours")


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--models", default=",".join(TARGETS))
    cli.add_argument("--samples", type=int, default=128)
    cli.add_argument("--side", type=int, default=96)
    cli.add_argument("--repeats", type=int, default=5)
    cli.add_argument("--only", default="", help="MODEL,TRAIN,SIDE: one visit, and its peak memory")
    a = cli.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    draws = torch.Generator().manual_seed(0)
    shape = (a.samples, a.side, a.side, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
    data = Samples(
        pixels,
        torch.randint(0, CLASSES, (a.samples,), generator=draws),
        torch.full((3,), 1 / 64),
        torch.full((3,), -2.0),
    )
    with tempfile.TemporaryDirectory() as folder:
        if a.only:
            name, trained, side = a.only.split(",")
            epoch(name, trained, side, Path(folder), a.side)(data)
            print(high_water())
            return
        rows = []
        for name in a.models.split(","):
            for trained in TRAINED:
                epochs = {side: epoch(name, trained, side, Path(folder), a.side) for side in SIDES}
                times: dict[str, list[float]] = {side: [] for side in SIDES}
                for repeat in range(a.repeats + 1):
                    for side, run in epochs.items():
                        began = time.process_time()
                        run(data)
                        times[side] += [time.process_time() - began] if repeat else []
                ratios = [o / p for o, p in zip(times["ours"], times["plain"], strict=True)]
                seconds = {side: statistics.median(times[side]) for side in SIDES}
                rows.append(
                    {
                        "model": name,
                        "train": trained,
                        **{
                            f"{side}_ms_a_sample": 1000 * s / a.samples
                            for side, s in seconds.items()
                        },
                        "ratio": statistics.median(ratios),
                        "ratios": [min(ratios), max(ratios)],
                        **{f"{side}_mib": peak(name, trained, side, a) for side in SIDES},
                    }
                )
                row = rows[-1]
                print(
                    f"{name} {trained:4}  plain {row['plain_ms_a_sample']:7.2f} ms a sample, ours"
                    f" {row['ours_ms_a_sample']:7.2f}, ratio {row['ratio']:.3f}"
                    f" ({min(ratios):.3f} to {max(ratios):.3f}); peak {row['plain_mib']:.0f} and"
                    f" {row['ours_mib']:.0f} MiB",
                    flush=True,
                )
    print(json.dumps({"load": os.getloadavg()[0], "torch": torch.__version__, "rows": rows}))


def high_water() -> int:
    """KiB: the most that this process has held. (`getrusage` knows of its parent, too.)"""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def epoch(
    name: str, trained: str, side: str, folder: Path, pixels: int
) -> Callable[[Samples], None]:
    """What trains one epoch, of a model that is made here. The plain loop does so again and again
    with its own model, and so do we."""
    file = folder / f"{name}.safetensors"
    size: dict[str, Any] = {"img_size": pixels} if "vit" in name else {}
    torch.manual_seed(0)
    module: Any = timm.create_model(name, num_classes=CLASSES, **size)
    if not file.exists():
        safetensors.torch.save_file(module.state_dict(), file)
    if side == "plain":
        return _plain(channels_last(module), trained, TARGETS[name])
    keys: dict[str, object] = {
        "method": "standalone",
        "train": trained,
        "models": f"timm:{name}:weights={file}",
    }
    keys |= {"batch-size": BATCH, "lora.rank": RANK, "lora.targets": ",".join(TARGETS[name])}
    method = registry.make(from_flat(keys), Task(CLASSES, (3, pixels, pixels)))
    model = channels_last(method.initial_model(0))

    def ours(data: Samples) -> None:
        visit(method, model, {}, data, 0, 1)

    return ours


def _plain(module: Any, trained: str, targets: list[str]) -> Callable[[Samples], None]:
    if trained == "head":
        return _features_then_head(module)
    if trained == "lora":
        head = next(n for n, layer in module.named_modules() if layer is module.get_classifier())
        config = peft.LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules=targets, modules_to_save=[head]
        )
        module = peft.get_peft_model(module, config).eval()
    else:
        module.train()

    def loop(data: Samples) -> None:
        _sgd(module, module.parameters(), _floats(data), data.labels)

    return loop


def _features_then_head(module: Any) -> Callable[[Samples], None]:
    module.eval().requires_grad_(False)
    head = nn.Linear(module.num_features, CLASSES)
    module.reset_classifier(0)

    def loop(data: Samples) -> None:
        inputs = _floats(data)
        with torch.no_grad():
            features = torch.cat([module(part) for part in inputs.split(256)])
        _sgd(head, head.parameters(), features, data.labels)

    return loop


def _floats(data: Samples) -> Tensor:
    return data.batch(slice(None))


def _sgd(module: nn.Module, parameters: Any, inputs: Tensor, labels: Tensor) -> None:
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    optimizer = torch.optim.SGD(wanted, lr=0.01, momentum=0.9)
    for batch in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(module(inputs[batch]), labels[batch]).backward()
        optimizer.step()


def peak(name: str, trained: str, side: str, a: argparse.Namespace) -> float:
    """MiB of a process that does one epoch alone."""
    words = [sys.executable, "-m", "benchmarks.pretrained", "--only", f"{name},{trained},{side}"]
    words += ["--samples", str(a.samples), "--side", str(a.side)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1024


if __name__ == "__main__":
    main()
