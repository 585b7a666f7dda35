"""Every call of the Python API as a user's typed script has it: `make lint` checks it, and
`test_typed.py` runs it. mypy refuses what is marked, otherwise the mark itself is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

from matplotlib.figure import Figure

import pfedlora_flwr
from pfedlora_flwr import Comparison, Newcomer, Run, UserError


def every_call(folder: Path, table: Path) -> dict[str, Any]:
    """Runs them in this folder; table: for `decide`. Returns what it found."""
    run = pfedlora_flwr.run(
        clients=3,
        clients_held_out=1,
        rounds=2,
        dataset="synthetic:150",
        models=["cnn5"],
        partition_kind="iid",
        batch_size=16,
        output=folder / "run",
        progress=False,
    )
    assert_type(run, Run)
    alone = pfedlora_flwr.run(run.config, method="standalone", output=folder / "a", progress=False)
    assert_type(run.gain(alone), float)
    assert_type(run.accuracy, float)
    assert_type(run.verdict, str)
    newcomer = pfedlora_flwr.adapt(run, folder / "new", client=2, rounds=1)
    assert_type(newcomer, Newcomer)
    comparison = pfedlora_flwr.compare(
        methods=["standalone", "fd"],
        seeds=[0],
        output=folder / "several",
        engine="local",
        jobs=1,
        progress=False,
        clients=3,
        rounds=1,
        dataset="synthetic:150",
        models="cnn5",
        partition_kind="iid",
    )
    assert_type(comparison, Comparison)
    assert_type(comparison.accuracy, dict[str, float])
    decided = pfedlora_flwr.decide(
        table, sites="site", label="kind", seeds=[0], minutes=0.1, progress=False, rounds=2
    )
    assert_type(decided, Comparison)
    assert_type(pfedlora_flwr.load(folder / "run", Run), Run)
    assert_type(pfedlora_flwr.load(folder / "several", Comparison), Comparison)
    assert_type(pfedlora_flwr.load(folder / "new"), Run | Comparison | Newcomer)
    assert_type(run.resume(3, progress=False, max_hours=1.0), Run)
    figure: Figure = run.plot("curves")
    return {
        "run": run,
        "comparison": comparison,
        "decided": decided,
        "figure": figure,
        "evaluated": run.evaluate(0),
        "gain": comparison.gain(),
        "keys": pfedlora_flwr.list_keys("adapter_hidden"),
        "methods": pfedlora_flwr.list_methods(),
        "datasets": pfedlora_flwr.list_datasets(),
    }


def wrong_calls(run: Run) -> None:
    """Each is refused before anything starts, here by mypy."""
    pfedlora_flwr.run(round=3)  # type: ignore[call-arg]
    pfedlora_flwr.run(rounds="three")  # type: ignore[arg-type]
    pfedlora_flwr.run(partition_kind="idd")  # type: ignore[arg-type]
    pfedlora_flwr.compare(adapter_hiden_dim=3)  # type: ignore[call-arg]
    pfedlora_flwr.decide(lr="fast")  # type: ignore[arg-type]
    run.resume(overwrite=True)  # type: ignore[call-arg]
    run.evaluate(0, lr=0.1)  # type: ignore[call-arg]
    raise UserError("not to be run")
