"""The yardstick for speed: a Standalone round of our workload in a plain PyTorch loop, without
Flower and without evaluation.

    python benchmarks/plain_loop.py DATA      # DATA holds CIFAR-10's train.parquet

10 clients with 4,800 images each, the five CNNs, batch 64, one local epoch, SGD with momentum 0.9;
resident float tensors in channels_last, two threads. Prints the median seconds of four rounds, the
first round left out."""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

CLIENTS, SAMPLES, BATCH, ROUNDS, THREADS = 10, 4800, 64, 5, 2
SHAPES = ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500))
"""Channels of the second convolution and width of the first linear layer, of CNN-1 to CNN-5."""


class PlainCNN(nn.Module):
    """One of the five CNNs, written down once more, so that the yardstick does not move with our
    models."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 5), nn.Conv2d(16, channels, 5)
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(25 * channels, width),
            nn.Linear(width, 500),
            nn.Linear(500, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, 32, 32] → logits, [B, 10]."""
        x = relu(max_pool2d(self.conv1(images), 2))
        x = relu(max_pool2d(self.conv2(x), 2)).flatten(1)
        return self.fc3(relu(self.fc2(relu(self.fc1(x)))))


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("data", type=Path)
    torch.set_num_threads(THREADS)
    pixels, targets = read_train(cli.parse_args().data)
    images = (
        torch.from_numpy(pixels[: CLIENTS * SAMPLES])
        .permute(0, 3, 1, 2)
        .float()
        .div(255)
        .sub(0.47)
        .div(0.25)
    )
    images, labels = (
        images.contiguous(memory_format=torch.channels_last),
        torch.from_numpy(targets[: CLIENTS * SAMPLES]),
    )
    models = [
        PlainCNN(*SHAPES[k % len(SHAPES)]).to(memory_format=torch.channels_last)
        for k in range(CLIENTS)
    ]
    seconds = [timed_round(models, images, labels) for _ in range(ROUNDS)]
    print(f"{statistics.median(seconds[1:]):.2f}")


def read_train(folder: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """CIFAR-10's training part: pixels [50000, 32, 32, 3] and labels."""
    table = pq.read_table(folder / "train.parquet")
    pixels = np.stack(
        [np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table["img"].to_pylist()]
    )
    return pixels, np.array(table["label"])


def timed_round(models: list[PlainCNN], images: Tensor, labels: Tensor) -> float:
    """Seconds to train each model for an epoch on its own part."""
    began = time.perf_counter()
    for k, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        own = torch.arange(k * SAMPLES, (k + 1) * SAMPLES)
        for batch in own[torch.randperm(SAMPLES)].split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
