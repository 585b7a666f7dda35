"""A run with its server and clients in this process, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from pfedlora_flwr import server_app
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.runs.directory import RunDirectory


def run_over(grid: Grid, keys: Mapping[str, Any]) -> None:
    """A run over this grid, as Flower starts it."""
    server_app.serve(grid, Context(1, 1, {}, RecordDict(), {**keys}))


def state_of(output: Path) -> Tensors:
    """The shared state at the run's end."""
    saved = RunDirectory(output).checkpoints.load()
    assert saved is not None
    return saved.tensors
