"""Peak memory of a command and everything it starts, Flower's and Ray's daemons included:
proportional set sizes, sampled twice a second.

    python benchmarks/peak_memory.py pfedlora run conf/cifar10.yaml -o rounds=3

Prints one JSON line: peak in GiB, seconds, the command's exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil

NAME = "PFEDLORA_MEASURED"


def total(marker: str) -> int:
    """Bytes of the processes that carry the marker: PSS, so a shared page counts once."""
    found = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(NAME) == marker:
                found += process.memory_full_info().pss
        except (psutil.Error, OSError):
            continue
    return found


def main() -> None:
    marker, peak, began = f"{os.getpid()}-{time.time_ns()}", 0, time.perf_counter()
    command = subprocess.Popen(sys.argv[1:], env=os.environ | {NAME: marker})
    while command.poll() is None:
        peak = max(peak, total(marker))
        time.sleep(0.5)
    print(
        json.dumps(
            {
                "peak_gib": round(peak / 2**30, 2),
                "seconds": round(time.perf_counter() - began, 1),
                "exit": command.returncode,
            }
        )
    )


if __name__ == "__main__":
    main()
