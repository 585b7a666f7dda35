"""A round's time with and without a site's policy at all six sites, in turn: `python -m
benchmarks.site_policy`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median

from tests.site.test_egress import OPEN, SITES, Rules, federate


def seconds(rules: Rules) -> list[float]:
    """Of each round of FedAvg, in one process."""
    with tempfile.TemporaryDirectory() as name:
        federate(Path(name), [rules] * SITES, {"method": "fedavg", "rounds": 20})
        rows = [json.loads(line) for line in (Path(name) / "run" / "rounds.jsonl").open()]
    return [row["seconds"] for row in rows if row["round"]]


def main() -> None:
    """Prints the medians and their ratio."""
    seconds({})  # warm
    found: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(4):
        found["without"] += seconds({})
        found["with"] += seconds(OPEN)
    without, held = (median(found[name]) for name in found)
    print(f"without {without:.3f} s, with {held:.3f} s a round: {held / without:.3f}")


if __name__ == "__main__":
    main()
