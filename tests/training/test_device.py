"""What holds for a process that trains."""

from __future__ import annotations

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide by themselves")
def test_freed_memory_is_kept_for_the_next_tensors() -> None:
    said = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, said.stdout.split())
    assert before > 1000  # of 4 KiB: 36 MB are given back five times
    assert after < 100
