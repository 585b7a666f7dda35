"""What holds for a process that trains."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, torch
from pfedlora_flwr.training.device import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        tensors = [torch.zeros(3_000_000) for _ in range(3)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

new_pages()
print(new_pages())
keep_freed_memory()
new_pages()
print(new_pages())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries decide by themselves"
)
def test_freed_memory_is_kept_for_the_next_tensors() -> None:
    # whatever the heap looks like
    given_back = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": str(2**17),
        "MALLOC_TRIM_THRESHOLD_": str(2**17),
    }
    command = [sys.executable, "-c", _PROGRAM]
    said = subprocess.run(
        command, env=given_back, capture_output=True, text=True, timeout=120, check=True
    )
    before, after = map(int, said.stdout.split())
    assert before > 1000  # of 4 KiB: 36 MB are given back five times
    assert after < 100
