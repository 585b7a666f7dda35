"""What `report`, `predict`, `evaluate`, `adapt` and `align` print."""

from __future__ import annotations

import csv
import io
import json
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.errors import counted
from pfedlora_flwr.models.named import RANDOM_WEIGHTS, random_encoders
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.ops.align import Alignment
from pfedlora_flwr.ops.evaluate import OWN, Evaluation
from pfedlora_flwr.ops.predict import Prediction
from pfedlora_flwr.ops.read_inputs import Place
from pfedlora_flwr.report.table import plain
from pfedlora_flwr.report.write import Written
from pfedlora_flwr.runs.rows import AdaptedRow
from pfedlora_flwr.training.metrics import TITLES

_COLUMNS: tuple[Literal["accuracy", "balanced_accuracy", "macro_f1"], ...] = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
)


def show_report(written: Written, out: Console) -> None:
    """The verdict, the accuracies as wide as the terminal, and where the rest is."""
    # in a file a paragraph stays one line
    out.print(written.verdict, soft_wrap=not out.is_terminal)
    lines = [[plain(cell) for cell in line] for line in written.table.lines]
    columns = written.table.columns
    wide = [
        max(map(len, (*cells, *name.split()))) for name, *cells in zip(columns, *lines, strict=True)
    ]
    # the page has them all
    fitting = [k for k in range(len(wide)) if sum(wide[: k + 1]) + 3 * k + 4 <= out.width] or [0]
    shown = Table()
    for k in fitting:
        shown.add_column(Text(columns[k]), justify="right" if k else "left", width=wide[k])
    for line in lines:
        shown.add_row(*(Text(line[k]) for k in fitting))
    out.print(shown)
    out.print(f"the report is {written.folder / 'report.html'}", soft_wrap=True)


def predictions_json(predictions: Sequence[Prediction], top: int) -> str:
    """A list of predictions, each with its `top` most probable classes."""
    rows = [
        {"client": p.client}
        | _fields(p.place, str(p.place.file))
        | {"classes": [{"name": name, "probability": share} for name, share in p.classes[:top]]}
        for p in predictions
    ]
    return json.dumps(rows, indent=1) + "\n"


def predictions_csv(predictions: Sequence[Prediction], top: int) -> str:
    """A row of titles, and one for each client and input."""
    first = predictions[0]
    table = csv.writer(stream := io.StringIO(), lineterminator="\n")
    pairs = [
        f"{what}_{i + 1}"
        for i in range(len(first.classes[:top]))
        for what in ("class", "probability")
    ]
    table.writerow(["client", *_fields(first.place, ""), *pairs])
    for p in predictions:
        told = (value for pair in p.classes[:top] for value in pair)
        table.writerow([p.client, *_fields(p.place, _text(p.place.file)).values(), *told])
    return stream.getvalue()


def predictions_lines(predictions: Sequence[Prediction], top: int, *, named: bool) -> str:
    """A line for each. named: it begins with the client."""
    lines = []
    for p in predictions:
        said = ", ".join(f"{name} {share:.4f}" for name, share in p.classes[:top])
        more = ", …" if len(p.classes) > top else ""
        row = "" if p.place.row is None else f", row {p.place.row}"
        who = f"client {p.client}, " if named else ""
        lines.append(f"{who}{_text(p.place.file)}{row}: {said}{more}\n")
    return "".join(lines)


def _fields(place: Place, file: str) -> dict[str, object]:
    """Where an input comes from, by the names that programs read."""
    return {"image": file} if place.row is None else {"file": file, "row": place.row}


def _text(path: Path) -> str:
    """The path in UTF-8: a file's name need not be."""
    return str(path).encode(errors="replace").decode()


def evaluation_notes(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """What to bear in mind, a line each."""
    data = evaluations[0]["data"]
    if any(e["seen"] for e in evaluations):
        yield (
            f"note: {data} holds samples that the models were trained on; without DATA each"
            " client's own test part is taken"
        )
    elif any(e["seen"] is None for e in evaluations):
        yield (
            f"note: whether {data} holds samples that the models were trained on is not known: the"
            " run's data is not here, or has changed"
        )
    if any(e["by_number"] for e in evaluations):
        yield f"note: classes were matched by number: those of the model or of {data} have no names"
    if any(e["by_place"] for e in evaluations):
        yield f"note: columns were matched by place: those of {data} have no names"


def show_evaluations(evaluations: Sequence[Evaluation], out: Console) -> None:
    """The scores, and of one client a table of its classes."""
    first, alone = evaluations[0], len(evaluations) == 1
    table = Table()
    for name in (
        ("class", "samples", "recall")
        if alone
        else ("client", "samples", "accuracy", "balanced accuracy", "macro-F1")
    ):
        table.add_column(name, justify="left" if name == "class" else "right")
    if alone:
        for row in first["classes"]:
            table.add_row(Text(row["name"]), str(row["samples"]), f"{row['recall']:.4f}")
    else:
        for e in evaluations:
            table.add_row(
                str(e["client"]), str(e["samples"]), *(f"{e[name]:.4f}" for name in _COLUMNS)
            )
    asked = f"client {first['client']}" if alone else f"{len(evaluations)} clients"
    where = "their own test parts" if first["data"] == OWN and not alone else first["data"]
    out.print(f"{asked} on {where}", soft_wrap=True)
    out.print(table)
    rows: list[dict[str, Any]] = [dict(e) for e in evaluations]
    found = {
        name: [row[score] for row in rows if row[score] is not None]
        for score, name in TITLES.items()
    }
    said = ", ".join(f"{name} {statistics.fmean(of):.4f}" for name, of in found.items() if of)
    over = f"over {first['samples']} samples" if alone else "unweighted means over the clients"
    out.print(f"{said} ({over})", soft_wrap=True)
    for e in evaluations:
        if "rows" in e:
            told = ", ".join(map(str, e["rows"]))
            out.print(f"test rows of client {e['client']}: {told}", soft_wrap=True)


def adapted_lines(row: AdaptedRow, output: Path) -> list[str]:
    """What came of it, in words."""
    gain = 100 * (row["accuracy"] - row["alone_accuracy"])
    visits, others = (counted(row[name], "visit") for name in ("visits", "alone_visits"))
    spent = f"{row['flops']:.3g}" if row["flops"] else "unknown"
    use = shlex.join(["pfedlora", "predict", str(output), "--client", str(row["client"])])
    return [
        f"client {row['client']}: {row['model']}, {row['samples']} training samples, the shared"
        f" state of round {row['round']}",
        f"adapted: accuracy {row['accuracy']:.4f} on its {row['test']} test samples, after {visits}"
        f" ({spent} operations)",
        f"alone: accuracy {row['alone_accuracy']:.4f}, after {others} ({row['alone_flops']:.3g}"
        " operations)",
        f"gain: {gain:+.2f} points",
        f"everything is in {output}; to use the model: {use} PATH",
    ]


def show_alignment(found: Alignment, out: Console) -> None:
    """The accuracies as a table, and what they are of."""
    table = Table(title="accuracy in %: class means of a row's model, read through a column's")
    table.add_column("class means of")
    for number in range(len(found["models"])):
        table.add_column(str(number + 1), justify="right")
    for number, (name, row) in enumerate(zip(found["models"], found["accuracy"], strict=True)):
        shares = ("—" if share is None else f"{100 * share:.1f}" for share in row)
        table.add_row(f"{number + 1} {name}, {found['widths'][number]} wide", *shares)
    out.print(table)
    widths = "; — where widths differ" if len(set(found["widths"])) > 1 else ""
    out.print(
        f"{found['samples']} samples of {found['classes']} classes, half for the means; by chance"
        f" {100 * found['chance']:.1f}{widths}"
    )
    for name in random_encoders(map(ModelSpec.parse, found["models"])):
        out.print(f"warning: {name}: {RANDOM_WEIGHTS}", soft_wrap=True)
    if found["directions"]:
        out.print(f"{found['directions']} principal directions written")
    if found["anchors"]:
        out.print(f"{found['anchors']} anchors written")
