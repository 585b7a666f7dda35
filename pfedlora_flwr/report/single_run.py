"""The report's table of one run's clients."""

from __future__ import annotations

from typing import Any

from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.site_names import names_told


def clients(study: Study) -> Table:
    """A row a client of the only run, those that have left included; no rows where there are more
    runs."""
    if len(study.runs) != 1:
        return Table("clients", "Clients", [])
    [run] = study.runs
    names, left = names_told(run.directory), run.result.get("left", {})
    changes = {"joined": run.result.get("joined", {}), "left": left}
    rows = []
    for client in sorted(run.result["per_client"].keys() | left, key=int):
        row: Any = run.result["per_client"].get(client, {})
        told = {
            "model": row.get("model"),
            "training samples": row.get("samples"),
            "test samples": row.get("test"),
            "last trained in round": row.get("last_round"),
            "accuracy": f"{100 * row['accuracy']:.2f}" if row else None,
            **{f"{what} after round": of.get(client) for what, of in changes.items() if of},
        }
        site = {"site": names.get(int(client), "–")} if names else {}
        rows.append(
            site | {"client": client} | {n: "–" if v is None else str(v) for n, v in told.items()}
        )
    note = "Test accuracy of each client's final model, on its own test part, in percent."
    return Table("clients", "Clients", rows, note)
