"""What holds for a process that trains."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import Call

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


@pytest.mark.slow
@pytest.mark.parametrize("instructions", [True, False])
def test_bf16_where_it_is_emulated_is_a_warning(
    instructions: bool, pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that PyTorch gives its answer, which differs by machine."""
    assert isinstance(torch.ops.mkldnn._is_mkldnn_bf16_supported(), bool)
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: instructions, raising=True
    )
    warning = "warning: precision is bf16, for which this processor has no instructions: a round"

    def told(precision: str) -> str:
        keys = {"precision": precision, "device": "cpu", "dataset": "digits", "output": tmp_path}
        words = [w for k, v in keys.items() for w in ("-o", f"{k}={v}")]
        return pfedlora("run", "--dry-run", *words)[1]

    assert (warning in told("bf16")) != instructions
    assert warning not in told("fp32")
    (tmp_path / "c.yaml").write_text(
        "base: {dataset: digits, device: cpu, precision: bf16}\nmethods: [standalone]"
    )
    words = ["compare", str(tmp_path / "c.yaml"), "--dry-run", "--output", str(tmp_path / "runs")]
    code, out, err = pfedlora(*words)
    assert code == 0, err
    assert (warning in out) != instructions
