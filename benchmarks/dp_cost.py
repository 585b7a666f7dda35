"""What differential privacy costs a round, in seconds of the processor.

    python -m benchmarks.dp_cost

For several sizes of the shared part: one client's clipping, the server's clipping and noise for 50
clients, and ε with z for a plan. Then, with `dp.level=record`: a client's training of its adapter
by SGD and by DP-SGD, and z for its plan. Each is the least of five."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.features.dp import accountant
from pfedlora_flwr.features.dp import link as dp
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.private import train
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.training.loop import Noise, Samples, Visit

SIZES = (170, 610, 30_670, 2_600_000)
CLIENTS, CLIP = 50, 0.3


def least(what: Callable[[], object]) -> float:
    """Seconds of the processor, the least of five calls."""
    found = []
    for _ in range(5):
        began = time.process_time()
        what()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'numbers':>10}  {'a client':>10}  {'server':>10}   milliseconds, K = {CLIENTS}")
    for size in SIZES:
        state = {"shared": torch.zeros(size)}
        one = Upload({"shared": torch.ones(size)}, 30)
        uploads = dict.fromkeys(range(CLIENTS), one)

        def client(one: Upload = one, state: dict[str, torch.Tensor] = state) -> object:
            return dp.clipped(one, state, CLIP)

        def server(
            uploads: dict[int, Upload] = uploads, state: dict[str, torch.Tensor] = state
        ) -> object:
            clipped = {k: dp.clipped(upload, state, CLIP) for k, upload in uploads.items()}
            return dp.noised(clipped, state, 1, CLIP, CLIENTS)

        print(f"{size:>10,}  {1000 * least(client):>10.2f}  {1000 * least(server):>10.2f}")

    def plan() -> object:
        accountant.record_epsilon.cache_clear()
        accountant.noise_for.cache_clear()
        return accountant.noise_for(8.0, 10, 1e-5)

    plan()  # with the import
    print(f"z for ε = 8, once a run: {least(plan):.2f} s")
    of_records()


def of_records() -> None:
    """Five epochs over 100 records of width 1280 in batches of 16."""
    e = from_flat({"batch-size": 16})
    data = Samples(torch.randn(100, 1280), torch.arange(100) % 10)
    print(f"{'h':>10}  {'SGD':>10}  {'DP-SGD':>10}   milliseconds, one visit")
    for hidden in (16, 60):
        adapter = Adapter(1280, hidden, 10)
        adapter.fix_down(0)

        def plain(adapter: Adapter = adapter) -> None:
            visit = Visit(e, 0, 1, torch_generator(0, "train"))

            def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                return cross_entropy(adapter(inputs), labels)

            visit.sgd("adapter", adapter.parameters(), loss, data, epochs=5)

        def private(adapter: Adapter = adapter) -> None:
            visit = Visit(e, 0, 1, torch_generator(0, "train"))
            train(visit, adapter, data, Noise(1.0, CLIP), 5, 0.01)

        print(f"{hidden:>10}  {1000 * least(plain):>10.2f}  {1000 * least(private):>10.2f}")

    def plan() -> object:
        accountant.record_epsilon.cache_clear()
        accountant.record_noise_for.cache_clear()
        return accountant.record_noise_for(8.0, 7, 350, 1e-5)

    print(f"z for ε = 8 in 350 steps, once a client: {least(plan):.2f} s")


if __name__ == "__main__":
    main()
