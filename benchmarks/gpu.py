"""One GPU full of clients, in one call of about five minutes.

    python -m benchmarks.gpu [--output FILE] [--seconds 300] [--device cpu]

The paper's setting: N = 100, C = 10 %, E = 10, batches of 64, CNN-1 to CNN-5, 480 synthetic uint8
images of CIFAR's size a client. First equality: a round's models in one lane, in two and in five,
by their bits, and captured against eager steps. Then seconds a round, each as it is measured: a
stock loop (DataLoader, eager steps, Standalone), a stock Flower app (stock_flower.py), ours without
Flower by method and lanes, and whole runs of pFedLoRA by the local engine, with evaluation and
saving. With more lanes than a round has clients the round has as many as lanes: compare samples/s.
FILE gets all as JSON after each figure. What the seconds do not reach is named.

--device cpu is a small try of the same that shows no speed."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.machine import seconds, sgemm
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training import graphs
from pfedlora_flwr.training.device import channels_last
from pfedlora_flwr.training.lanes import Lanes
from pfedlora_flwr.training.loop import Samples

METHODS = ("standalone", "pfedlora", "fedproto", "fml")
BATCH = 64
PAPER = {"clients": 100, "sampled": 10, "epochs": 10, "samples": 480}
SMALL = {"clients": 10, "sampled": 5, "epochs": 1, "samples": 100}


class Bench:
    """The setting, its data on the device, and what has been found so far."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.began = a, time.monotonic()
        self.device = torch.device(a.device)
        generator = torch.Generator().manual_seed(0)
        count = max(a.sampled, *a.lanes)
        shape = (count, a.samples, 32, 32, 3)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 10, shape[:2], generator=generator)
        scale, shift = (torch.full((3,), x, device=self.device) for x in (1 / 64, -2.0))
        self.data = [
            Samples(x.to(self.device), y.to(self.device), scale, shift)
            for x, y in zip(self.images, self.labels, strict=True)
        ]
        name = torch.cuda.get_device_name(0) if self.on_gpu else "none: a CPU, which shows no speed"
        self.found: dict[str, Any] = {"gpu": name, "torch": torch.__version__, "figures": {}}
        self.found["arguments"] = vars(a)
        print(f"GPU {name}; N = {a.clients}, K = {a.sampled}, E = {a.epochs}, {a.samples} samples")

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def tell(self, side: str, figure: dict[str, Any], line: str) -> None:
        """Prints a figure, and writes all."""
        self.found["figures"][side] = figure
        print(f"{time.monotonic() - self.began:4.0f} s  {side:>24}  {line}", flush=True)
        if self.a.output:
            Path(self.a.output).write_text(json.dumps(self.found, indent=1))

    def over(self, side: str) -> bool:
        """Whether the time is over; then the side is named."""
        over = time.monotonic() - self.began > self.a.seconds
        if over:
            self.tell(side, {"not measured": "the time was over"}, "not measured: no time left")
        return over

    def timed(self, side: str, clients: int, work: Callable[[], object], rounds: int) -> None:
        """A side's rounds, after one to warm up."""
        if self.over(side):
            return
        work()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        took = [self._once(work) for _ in range(rounds)]
        self.figure(side, took, clients, torch.cuda.max_memory_reserved())

    def figure(self, side: str, took: Sequence[float], clients: int, peak: int = 0) -> None:
        """Tells of a side's rounds, beside the stock loop where that has been measured."""
        a, median = self.a, statistics.median(took)
        rate = clients * a.samples * a.epochs / median
        figure: dict[str, Any] = {"seconds": took, "samples/s": rate}
        line = f"{median:8.3f} s a round  {rate:10.0f} samples/s"
        stock = self.found["figures"].get("stock loop")
        if stock:
            figure["of the stock loop"] = rate / stock["samples/s"]
            line += f"  {figure['of the stock loop']:6.1f} x the stock loop"
        if peak:
            figure["peak memory"] = peak
            line += f"  peak {peak / 2**20:,.0f} MiB"
        self.tell(side, figure, line)

    def _once(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    # the sides

    def stock_loop(self) -> None:
        """A round of Standalone as tutorials write it: DataLoader, eager steps."""
        for client in range(self.a.sampled):
            model = build(f"cnn{client % 5 + 1}", Task(10)).to(self.device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            stock = Stock(self.images[client], self.labels[client])
            loader = DataLoader(stock, batch_size=BATCH, shuffle=True, num_workers=2)
            for _ in range(self.a.epochs):
                for inputs, targets in loader:
                    optimizer.zero_grad()
                    out = model(inputs.to(self.device))
                    cross_entropy(out, targets.to(self.device)).backward()
                    optimizer.step()

    def ours(self, name: str, lanes: int, clients: int) -> Callable[[], list[nn.Module]]:
        """A round of our engine in so many lanes, models and data resident."""
        keys = {"method": name, "local-epochs": self.a.epochs, "batch-size": BATCH}
        experiment = from_flat(keys)
        state = registry.find(name)(experiment, Task(10)).state_init(1)
        models: dict[int, nn.Module] = {}
        side_by_side = Lanes(lanes, self.device)

        def trained(k: int) -> None:
            method = registry.find(name)(experiment, Task(10))
            if k not in models:
                models[k] = channels_last(method.private_init(k, k).to(self.device))
            down = method.download(state, k, 1).items()
            received = {part: tensor.to(self.device) for part, tensor in down}
            visit(method, models[k], received, self.data[k], k, round=1)

        def one_round() -> list[nn.Module]:
            for _ in side_by_side.each(trained, range(clients)):
                pass
            return [models[k] for k in range(clients)]

        return one_round

    def run(self, lanes: int) -> None:
        """Rounds of pFedLoRA by the local engine, whole."""
        import pfedlora_flwr

        a = self.a
        with tempfile.TemporaryDirectory() as folder:
            run = pfedlora_flwr.run(
                engine="local",
                progress=False,
                output=f"{folder}/run",
                dataset=f"synthetic:{a.clients * a.samples * 5 // 4}",  # a fifth is not trained on
                clients=a.clients,
                participation=a.sampled / a.clients,
                partition_kind="iid",
                rounds=4,
                local_epochs=a.epochs,
                evaluate_initial=False,
                device=a.device,
                lanes=lanes,
            )
            rows = (run.path / "rounds.jsonl").read_text().splitlines()
        took = [row["seconds"] for row in map(json.loads, rows) if row["round"] > 1]
        self.figure(f"run pfedlora, lanes {lanes}", took, a.sampled)


class Stock(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """What a tutorial does for every sample."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.images[i].permute(2, 0, 1).float() / 255 - 0.5) / 0.25, self.labels[i]


def main() -> None:
    a = arguments()
    torch.set_float32_matmul_precision("high")  # as runs have it
    bench = Bench(a)
    for name in a.methods:
        if not bench.over(f"{name}, equality"):
            equality(bench, name)
    bench.timed("stock loop", a.sampled, bench.stock_loop, 2)
    for lanes in a.lanes:
        for name in a.methods:
            clients = max(a.sampled, lanes)
            work = bench.ours(name, lanes, clients)
            bench.timed(f"{name}, lanes {lanes}", clients, work, 3)
    if bench.on_gpu:
        bench.tell("limits", limits(), "")
    for lanes in (1, min(10, a.sampled)):
        side = f"run pfedlora, lanes {lanes}"
        if not bench.over(side):
            bench.run(lanes)
    stock_flower(bench)


def arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    cli.add_argument("--output", default="")
    cli.add_argument("--methods", default=",".join(METHODS))
    cli.add_argument("--lanes")
    cli.add_argument("--seconds", type=float, default=300)
    for name, value in PAPER.items():
        cli.add_argument(f"--{name}", type=int, help=f"{value}; on a CPU {SMALL[name]}")
    a = cli.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch sees: nothing is measured; --device cpu is a try")
    for name, value in (SMALL if a.device == "cpu" else PAPER).items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    a.lanes = a.lanes or ("1,2,5" if a.device == "cpu" else "1,2,5,10,20")
    a.methods, a.lanes = a.methods.split(","), [int(n) for n in a.lanes.split(",")]
    return a


def equality(bench: Bench, name: str) -> None:
    """Whether a round's models have the same bits in one lane as once more, in two, and in five;
    and ‖captured − eager‖ / ‖eager‖. cuDNN is held to algorithms that repeat themselves."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False):
        found = {n: bench.ours(name, abs(n), 5)() for n in (1, -1, 2, 5)}
        capture, graphs.capture = graphs.capture, lambda step, order, batch: None
        try:
            eager = weights(bench.ours(name, 1, 5)())
        finally:
            graphs.capture = capture
    digests = {n: digest(models) for n, models in found.items()}
    one = weights(found[1])
    figure = {
        "repeats itself": digests[1] == digests[-1],
        "lanes are equal": digests[1] == digests[2] == digests[5],
        "captured against eager": float((one - eager).norm() / eager.norm()),
    }
    bench.tell(f"{name}, equality", figure, ", ".join(f"{k}: {v}" for k, v in figure.items()))


def weights(models: list[nn.Module]) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double().cpu() for m in models for p in m.parameters()])


def digest(models: list[nn.Module]) -> str:
    return hashlib.sha256(weights(models).numpy().tobytes()).hexdigest()


def limits() -> dict[str, float]:
    """For CNN-1 at batch 64, microseconds a sample if only launches, only memory or only arithmetic
    counted."""
    gpu = torch.device("cuda")
    empty = torch.zeros(1, device=gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            empty.add_(1)
    launch = seconds(graph.replay) / 100
    big = torch.empty(2**28, device=gpu)
    bandwidth = 2 * big.numel() * 4 / seconds(lambda: big.clone())
    found = {
        "launches": 60 * launch / BATCH * 1e6,  # about 60 kernels a step
        # weights, gradients and momentum, each once a step
        "memory": 5 * 2_621_558 * 4 / bandwidth / BATCH * 1e6,
        "arithmetic": 27_073_200 / (sgemm(8192, "cuda") * 1e9) * 1e6,
    }
    told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    print(f"microseconds a sample: {told}")
    return found


def stock_flower(bench: Bench) -> None:
    """Flower's simulation as its tutorials write it, on the same device."""
    a, side = bench.a, "stock Flower app"
    left = a.seconds - (time.monotonic() - bench.began)
    if not importlib.util.find_spec("ray") or left < 60:
        why = "60 s would be needed" if importlib.util.find_spec("ray") else "Ray is not installed"
        bench.tell(side, {"not measured": why}, f"not measured: {why}")
        return
    script = Path(__file__).with_name("stock_flower.py")
    given = {"clients": a.clients, "sampled": a.sampled, "epochs": a.epochs, "device": a.device}
    given |= {"synthetic": a.clients * a.samples, "rounds": 3}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    try:
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, timeout=left
        )
        took = json.loads(done.stdout.splitlines()[-1])["seconds"]
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        bench.tell(side, {"not measured": repr(error)}, f"not measured: {type(error).__name__}")
        return
    bench.figure(side, took, a.sampled)


if __name__ == "__main__":
    main()
