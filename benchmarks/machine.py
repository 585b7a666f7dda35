"""The machine's limits: fp32 matrix products on one and on all threads, through PyTorch's default
and through oneDNN; on a GPU also copies.

    python benchmarks/machine.py

Prints a table and one JSON line; rates in GFLOP/s (GB/s for copies), the best of several medians.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], repeats: int = 7, inner: int = 3) -> float:
    """Median seconds of one call."""
    work()
    found = []
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(inner):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / inner)
    return statistics.median(found)


def sgemm(n: int = 2048, device: str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """GFLOP/s of an n × n × n product as PyTorch does it."""
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b) / 1e9


def onednn(batch: int = 512, width: int = 2000, out: int = 2000) -> float:
    """GFLOP/s of the product our linear layers use on the CPU."""
    from pfedlora_flwr.models import linear

    if not linear._AVAILABLE:
        return 0.0
    x, w = torch.randn(batch, width), torch.randn(out, width)
    return 2 * batch * width * out / seconds(lambda: linear._product(x, w)) / 1e9


def main() -> None:
    threads = os.cpu_count() or 1
    found: dict[str, object] = {"cores": threads, "torch": torch.__version__}
    for n in sorted({1, threads}):
        torch.set_num_threads(n)
        found |= {f"sgemm-{n}": round(sgemm()), f"onednn-{n}": round(onednn())}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(0), "gpu-fp32": round(sgemm(8192, "cuda"))}
        torch.set_float32_matmul_precision("high")
        found |= {
            "gpu-tf32": round(sgemm(8192, "cuda")),
            "gpu-bf16": round(sgemm(8192, "cuda", torch.bfloat16)),
        }
        big = torch.empty(2**30, device="cuda")
        found["gpu-copy"] = round(2 * 2**32 / seconds(lambda: big.clone()) / 1e9)
    for name, value in found.items():
        print(f"{name:>12}  {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
