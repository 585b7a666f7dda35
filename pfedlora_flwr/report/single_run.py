"""The report's table of one run's clients."""

from __future__ import annotations

from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table


def clients(study: Study) -> Table:
    """A row a client of the only run; no rows where there are more runs."""
    runs = study.runs
    rows = [
        {
            "client": client,
            "model": row["model"],
            "training samples": str(row["samples"] or "–"),
            "test samples": str(row["test"]),
            "last trained in round": str(row["last_round"]),
            "accuracy": f"{100 * row['accuracy']:.2f}",
        }
        for client, row in (runs[0].result["per_client"].items() if len(runs) == 1 else ())
    ]
    note = "Test accuracy of each client's final model, on its own test part, in percent."
    return Table("clients", "Clients", rows, note)
