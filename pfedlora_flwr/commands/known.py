"""`pfedlora methods` and `pfedlora keys`: what there is to choose from."""

from __future__ import annotations

import json

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from pfedlora_flwr.commands.console import assigned
from pfedlora_flwr.ops import known


def show_methods(out: Console, *, as_json: bool) -> None:
    """A row each."""
    if as_json:
        print(json.dumps(known.methods(), indent=1))
        return
    table = Table()
    for name in ("method", "idea", "clients share"):
        table.add_column(name, no_wrap=name == "method")
    for row in known.methods():
        table.add_row(row["method"], row["idea"], row["shares"])
    out.print(table)


def show_keys(word: str, out: Console, *, as_json: bool) -> None:
    """Each with its default, and its meaning below. Raises UserError for a word that no key has."""
    found = known.find_keys(word)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for row in found:
        out.print(assigned(row), soft_wrap=True)
        out.print(Padding(f"{row['meaning']} [{row['allowed']}]", (0, 0, 0, 4)))
