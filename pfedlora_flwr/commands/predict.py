"""`pfedlora predict`: clients' personalised models asked about images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from pfedlora_flwr.data.images import READABLE, read_image
from pfedlora_flwr.data.source import SIZE
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import check_replaceable, make_folder, write_atomically
from pfedlora_flwr.runs.trained import Trained


@dataclass(frozen=True)
class Prediction:
    """What a client's model says of one image: every class with its probability, the most probable first."""

    client: int
    image: Path
    classes: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Form:
    """How predictions are written: as json, csv or lines. top: the classes of each. named: lines begin with the client."""

    kind: str
    top: int
    named: bool

    def text(self, predictions: Sequence[Prediction]) -> str:
        """All predictions, in their order; JSON is a list, CSV has a row of titles and then one a client and image."""
        return {"json": self._json, "csv": self._csv, "lines": self._lines}[self.kind](predictions)

    def _json(self, predictions: Sequence[Prediction]) -> str:
        rows = [
            {
                "client": p.client,
                "image": str(p.image),
                "classes": [{"name": name, "probability": share} for name, share in p.classes[: self.top]],
            }
            for p in predictions
        ]
        return json.dumps(rows, indent=1) + "\n"

    def _csv(self, predictions: Sequence[Prediction]) -> str:
        most = len(predictions[0].classes[: self.top])
        table = csv.writer(stream := io.StringIO(), lineterminator="\n")
        table.writerow(["client", "image", *(f"{what}_{i + 1}" for i in range(most) for what in ("class", "probability"))])
        table.writerows([p.client, _text(p.image), *(value for pair in p.classes[: self.top] for value in pair)] for p in predictions)
        return stream.getvalue()

    def _lines(self, predictions: Sequence[Prediction]) -> str:
        return "".join(f"{self._line(p)}\n" for p in predictions)

    def _line(self, p: Prediction) -> str:
        said = ", ".join(f"{name} {share:.4f}" for name, share in p.classes[: self.top])
        more = ", …" if len(p.classes) > self.top else ""
        return f"{f'client {p.client}, ' if self.named else ''}{_text(p.image)}: {said}{more}"


def answer(models: Iterable[Trained], paths: Iterable[Path], form: Form, err: Console, output: Path | None, *, overwrite: bool) -> int:
    """Writes what the models say of the images to `output`, or the terminal, and on `err` a line for each path that gives none.

    The exit code: 0, 1 where some paths gave none, 2 where all did. Raises UserError where `output` cannot be written.
    """
    if output is not None:
        check_replaceable(output, overwrite=overwrite)
        make_folder(output.absolute().parent)
    files, pixels, broken = read_images(paths)
    for line in broken:
        err.print(f"error: {line}", markup=False, highlight=False)
    if not files:
        return 2
    text = form.text(predict(models, files, pixels))
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text.encode())
    return 1 if broken else 0


def read_images(paths: Iterable[Path]) -> tuple[list[Path], npt.NDArray[np.uint8], list[str]]:
    """The image files and their pixels, uint8 [n, 32, 32, 3]; and a line for each path that gives none.

    A folder stands for all images in it and below, sorted; what is hidden is left out.
    """
    files, pixels, broken = [], [], []
    for path in paths:
        inside = _inside(path) if path.is_dir() else [path]
        if not inside:
            broken.append(f"{path}: no image in this folder")
        for file in inside:
            try:
                pixels.append(read_image(file, (SIZE, SIZE)))
                files.append(file)
            except UserError as error:
                broken.append(str(error))
    return files, np.array(pixels, np.uint8), broken


def predict(models: Iterable[Trained], files: Sequence[Path], pixels: npt.NDArray[np.uint8]) -> list[Prediction]:
    """What each model says of each image, uint8 [n, 32, 32, 3]. Raises UserError for a model whose outputs are no numbers."""
    predictions = []
    for trained in models:
        probabilities = trained.logits(pixels).softmax(1)
        if not bool(probabilities.isfinite().all()):
            raise UserError(f"the model of client {trained.client} gives values that are not finite: its training diverged")
        for file, row in zip(files, probabilities.tolist(), strict=True):
            ranked = sorted(zip(trained.class_names, row, strict=True), key=lambda pair: -pair[1])
            predictions.append(Prediction(trained.client, file, tuple(ranked)))
    return predictions


def _inside(folder: Path) -> list[Path]:
    found = (file for file in folder.rglob("*") if file.suffix.lower() in READABLE and file.is_file())
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def _text(path: Path) -> str:
    """The path in UTF-8: a file's name need not be."""
    return str(path).encode(errors="replace").decode()
