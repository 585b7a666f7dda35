"""A round of `fedit` beside a plain peft loop on the same samples, and the server's time of each
method that exchanges LoRA.

    python -m benchmarks.federated_lora [--clients 4] [--samples 64] [--repeats 5] [--server 50]

One thread, a ViT-tiny on images of 96 × 96, LoRA of rank 8 in `qkv`, batches of 32. A round is the
clients' downloads and visits, their check and the merge; the plain loop trains one model of peft as
many steps. The two run alternately; medians of CPU seconds. The server merges random uploads of
that many clients, of MiniLM's size: 12 layers of 384 × 384; once, after one to warm up."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.pretrained import BATCH, CLASSES, RANK, epoch
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.device import channels_last, keep_freed_memory
from pfedlora_flwr.training.loop import Samples

MODEL, SIDE = "vit_tiny_patch16_224", 96
LAYERS, WIDTH = 12, 384


class Wide(nn.Module):
    """As many adapted layers, of the same size, as a MiniLM-L6 has."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(inputs))


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--clients", type=int, default=4)
    cli.add_argument("--samples", type=int, default=64, help="of each client")
    cli.add_argument("--repeats", type=int, default=5)
    cli.add_argument("--server", type=int, default=50, help="clients whose uploads are merged")
    a = cli.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(a, Path(folder))
    print(
        f"a round of {a.clients} clients: plain {found['plain']:.2f} s, fedit {found['ours']:.2f}"
        f" s, ratio {found['ratio']:.3f} ({found['ratios'][0]:.3f} to {found['ratios'][1]:.3f})"
    )
    merges = {name: merge(name, a.server) for name in ("fedit", "flexlora", "flora", "fedex_lora")}
    for name, (aggregate, error) in merges.items():
        print(
            f"{name}, {a.server} clients: merge {aggregate:.2f} s, aggregation error {error:.2f} s"
        )
    print(json.dumps({"load": os.getloadavg()[0], "torch": torch.__version__, **found} | merges))


def rounds(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU seconds of a round, and of the plain loop over all clients' samples."""
    draws = torch.Generator().manual_seed(0)
    n = a.samples * a.clients
    pixels = torch.randint(0, 256, (n, SIDE, SIDE, 3), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, CLASSES, (n,), generator=draws)
    scale, shift = torch.full((3,), 1 / 64), torch.full((3,), -2.0)
    whole = Samples(pixels, labels, scale, shift)
    parts = [
        Samples(pixels[k :: a.clients], labels[k :: a.clients], scale, shift)
        for k in range(a.clients)
    ]
    plain = epoch(MODEL, "lora", "plain", folder, SIDE)
    ours = round_of_fedit(folder, parts)
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for repeat in range(a.repeats + 1):
        for side, run in (("plain", lambda: plain(whole)), ("ours", ours)):
            began = time.process_time()
            run()
            times[side] += [time.process_time() - began] if repeat else []
    ratios = [o / p for o, p in zip(times["ours"], times["plain"], strict=True)]
    return {side: statistics.median(found) for side, found in times.items()} | {
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }


def round_of_fedit(folder: Path, parts: list[Samples]) -> Callable[[], None]:
    """What does the next round, from the state of the one before."""
    keys: dict[str, object] = {
        "method": "fedit",
        "models": f"timm:{MODEL}:weights={folder / f'{MODEL}.safetensors'}",
        "train": "lora",
        "clients": len(parts),
        "batch-size": BATCH,
        "lora.rank": RANK,
        "lora.targets": "qkv",
        "optimizer": "sgd",
    }
    method = registry.make(from_flat(keys), Task(CLASSES, (3, SIDE, SIDE)))
    models = [channels_last(method.initial_model(k)) for k in range(len(parts))]
    state, number = method.state_init(1), 0

    def play() -> None:
        nonlocal state, number
        number += 1
        uploads = {}
        for k, data in enumerate(parts):
            received = method.download(state, k, number)
            uploads[k], _ = visit(method, models[k], received, data, k, number)
            method.check(uploads[k], state, k)
        merged = method.aggregate(uploads, state, number)
        method.aggregation_error(uploads, state, merged)
        state = merged

    return play


def merge(name: str, clients: int) -> tuple[float, float]:
    """CPU seconds of the server's merge, and of its aggregation error."""
    keys: dict[str, object] = {
        "method": name,
        "models": "benchmarks.federated_lora:Wide",
        "train": "lora",
        "lora.rank": RANK,
        "lora.targets": "all-linear",
        "clients": clients,
    }
    method: Any = registry.make(from_flat(keys), Task(CLASSES, (WIDTH,)))
    draws = torch.Generator().manual_seed(0)
    state = method.state_init(1)
    uploads = {
        k: Upload(
            {
                n: torch.randn(t.shape, generator=draws)
                for n, t in method.layouts[method.model_of(k)].items()
            },
            100 + k,
        )
        for k in range(clients)
    }
    method.aggregate(uploads, state, 1)
    began = time.process_time()
    after = method.aggregate(uploads, state, 1)
    merged = time.process_time()
    method.aggregation_error(uploads, state, after)
    return merged - began, time.process_time() - merged


if __name__ == "__main__":
    main()
