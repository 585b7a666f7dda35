"""`pfedlora predict`: the predictions of clients' personalised models for images or rows of
files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import check_replaceable, make_folder, write_atomically
from pfedlora_flwr.ops.read_inputs import Asked, Place, read, reading_of
from pfedlora_flwr.runs.trained import Trained


@dataclass(frozen=True)
class Prediction:
    """What a client's model says of one input: every class with its probability, the most probable
    first."""

    client: int
    place: Place
    classes: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Form:
    """How predictions are written: as json, csv or lines. top: the classes of each. named: lines
    begin with the client."""

    kind: str
    top: int
    named: bool

    def text(self, predictions: Sequence[Prediction]) -> str:
        """All predictions, in their order; JSON is a list, CSV has a row of titles and then one a
        client and input."""
        return {"json": self._json, "csv": self._csv, "lines": self._lines}[self.kind](predictions)

    def _json(self, predictions: Sequence[Prediction]) -> str:
        rows = [
            {"client": p.client}
            | _fields(p.place, str(p.place.file))
            | {
                "classes": [
                    {"name": name, "probability": share} for name, share in p.classes[: self.top]
                ]
            }
            for p in predictions
        ]
        return json.dumps(rows, indent=1) + "\n"

    def _csv(self, predictions: Sequence[Prediction]) -> str:
        first = predictions[0]
        most = len(first.classes[: self.top])
        table = csv.writer(stream := io.StringIO(), lineterminator="\n")
        where = _fields(first.place, "")
        table.writerow(
            [
                "client",
                *where,
                *(f"{what}_{i + 1}" for i in range(most) for what in ("class", "probability")),
            ]
        )
        for p in predictions:
            told = (value for pair in p.classes[: self.top] for value in pair)
            table.writerow([p.client, *_fields(p.place, _text(p.place.file)).values(), *told])
        return stream.getvalue()

    def _lines(self, predictions: Sequence[Prediction]) -> str:
        return "".join(f"{self._line(p)}\n" for p in predictions)

    def _line(self, p: Prediction) -> str:
        said = ", ".join(f"{name} {share:.4f}" for name, share in p.classes[: self.top])
        more = ", …" if len(p.classes) > self.top else ""
        row = "" if p.place.row is None else f", row {p.place.row}"
        return (
            f"{f'client {p.client}, ' if self.named else ''}{_text(p.place.file)}{row}:"
            f" {said}{more}"
        )


def answer(
    models: Iterable[Trained],
    paths: Iterable[Path],
    form: Form,
    err: Console,
    output: Path | None,
    *,
    overwrite: bool,
    options: Mapping[str, object],
) -> int:
    """Writes what the models say of the inputs to `output`, or the terminal, and on `err` a line
    for each path that gives none. options: as `reading_of` has them.

    The exit code: 0, 1 where some paths gave none, 2 where all did. Raises UserError if `output`
    cannot be written."""
    if output is not None:
        check_replaceable(output, overwrite=overwrite)
        make_folder(output.absolute().parent)
    rest, paths = iter(models), list(paths)
    first = next(rest)
    how = reading_of(first, options, paths)
    asked = read(paths, first.task, first.feature_names, how)
    for line in asked.broken:
        err.print(f"error: {line}")
    if not asked.places:
        return 2
    for line in asked.notes:
        err.print(f"note: {line}", soft_wrap=True)
    text = form.text(predict(chain([first], rest), asked))
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text.encode())
    return 1 if asked.broken else 0


def predict(models: Iterable[Trained], asked: Asked) -> list[Prediction]:
    """What each model says of each input. Raises UserError for a model whose outputs are no
    numbers, or that takes other inputs."""
    predictions: list[Prediction] = []
    for trained in models:
        if (trained.task.shape, trained.feature_names) != (asked.shape, asked.feature_names):
            raise UserError(
                f"the model of client {trained.client} takes other inputs than those before: use"
                f" it alone"
            )
        probabilities = trained.logits(asked.inputs).softmax(1)
        if not bool(probabilities.isfinite().all()):
            raise UserError(
                f"the model of client {trained.client} gives values that are not finite: its"
                " training diverged"
            )
        for place, row in zip(asked.places, probabilities.tolist(), strict=True):
            ranked = sorted(zip(trained.class_names, row, strict=True), key=lambda pair: -pair[1])
            predictions.append(Prediction(trained.client, place, tuple(ranked)))
    return predictions


def _fields(place: Place, file: str) -> dict[str, object]:
    """Where an input comes from, by the names that programs read."""
    return {"image": file} if place.row is None else {"file": file, "row": place.row}


def _text(path: Path) -> str:
    """The path in UTF-8: a file's name need not be."""
    return str(path).encode(errors="replace").decode()
