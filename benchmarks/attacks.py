"""One liar of ten clients: the other nine's mean test accuracy, by method, rule and lie.

    python -m benchmarks.attacks [fedavg,pfedlora [KEY=VALUE ...]]

The embedded digits, iid, ten clients, a linear layer and a head; client 0 trains honestly and sends
its update so many times, with the n_k that it likes (`LIES` of tests/federation/malice.py)."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from pfedlora_flwr.config import parse_overrides
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.directory import RunDirectory
from tests.federation.malice import LIES, simulate

RULES: dict[str, dict[str, object]] = {
    "mean": {},
    "mean, max-weight 3": {"max-weight": 3},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed-mean"},
    "krum": {"aggregation": "krum"},
}
ATTACKS = ("", *(name for name in LIES if name.startswith("turned")))
KEYS: dict[str, Any] = {
    "clients": 10,
    "rounds": 6,
    "local-epochs": 2,
    "models": "tests.methods.narrow:Narrow",
    "min-success": 0.8,
    "evaluate-every": 6,
}


def told(folder: Path, lie: str, keys: dict[str, Any]) -> str:
    """The honest clients' mean accuracy in percent, and how many of them were refused."""
    try:
        output = simulate(folder, {0: lie} if lie else {}, **keys)
    except (UserError, RuntimeError) as error:
        return f"the run ends: {str(error)[:60]}"
    honest = [row for row in RunDirectory(output).visits() if row["client"]]
    shares = [row["accuracy"] for row in honest if row["status"] == "ok" and "accuracy" in row]
    refused = sum(row["status"] != "ok" for row in honest)
    return f"{100 * fmean(shares):.1f}" + (f" ({refused} refused)" if refused else "")


def lines(methods: list[str], keys: dict[str, Any]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield "| method | rule | " + " | ".join(lie or "no liar" for lie in ATTACKS) + " |"
    yield "| --- " * (2 + len(ATTACKS)) + "|"
    for method in methods:
        for rule, own in RULES.items():
            cells = []
            for lie in ATTACKS:
                with tempfile.TemporaryDirectory() as folder:
                    cells.append(told(Path(folder), lie, KEYS | {"method": method} | own | keys))
            yield " | ".join([f"| {method}", rule, *cells]) + " |"


def main() -> None:
    logging.disable(logging.CRITICAL)
    methods = sys.argv[1] if len(sys.argv) > 1 else "fedavg,pfedlora"
    for line in lines(methods.split(","), parse_overrides(sys.argv[2:])):
        print(line, flush=True)


if __name__ == "__main__":
    main()
