"""Data that would become nonsense are read rightly, or named in a line."""

from __future__ import annotations

import io
import os
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, PngImagePlugin
from pyarrow import parquet

import pfedlora_flwr as pf
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.remarks import _near
from pfedlora_flwr.data.setup import check_classes
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment

pytestmark = pytest.mark.usefixtures("own_place")

Y = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 4)) + 2 * np.eye(4)[Y]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
NAMES = ["ant", "bee", "cat"]


def by_function(monkeypatch: pytest.MonkeyPatch, made: Callable[[], Any]) -> datasets.Dataset:
    module = types.ModuleType("own_data")
    module.made = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_data", module)
    return datasets.load("own_data:made", Reading())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({0: "ant", 1: "bee", 2: "cat"}, NAMES),
        ({"2": "cat", "0": "ant", "1": "bee"}, NAMES),
        ({"cat": 2, "ant": 0, "bee": np.int64(1)}, NAMES),
        ([b"ant", "bee", np.bytes_("caf\u00e9".encode())], ["ant", "bee", "caf\u00e9"]),
        (np.array([b"ant", b"bee", b"cat"]), NAMES),
        ({"ant": 0, "bee": 0, "cat": 2}, "numbers 0, 2; expected 0 to 2"),
        ({1: "ant", 2: "bee", 3: "cat"}, "numbers 1, 2, 3; expected 0 to 2"),
        ({"ant", "bee", "cat"}, "class_names is set; expected a list"),
        ("abc", "class_names is str"),
        (b"abc", "class_names is bytes"),
        (np.array([["ant"], ["bee"], ["cat"]]), r"class_names is ndarray \[3, 1\]"),
        (["ant", None, "cat"], r"class_names\[1\] is None; expected a name"),
        (["ant", float("nan"), "cat"], r"class_names\[1\] is nan"),
        (["ant", "b\udce9", "cat"], r"the name 'b\\udce9' is not UTF-8"),
    ],
    ids=lambda given: "set" if isinstance(given, set) else ascii(given),
)
def test_names_stand_on_their_class_or_are_refused(
    given: Any, expected: list[str] | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a function, of the Python API and, where a file can hold them, of an .npz."""

    def of_api() -> list[str]:
        keys = {"clients": 3, "partition_kind": "iid", "rounds": 1, "engine": "local"}
        run = pf.run(dataset=(X, Y, given), output=tmp_path / "run", progress=False, **keys)
        return run.class_names(0)

    ways: list[Callable[[], Any]] = [
        lambda: by_function(monkeypatch, lambda: (X, Y, given)).class_names
    ]
    if isinstance(given, np.ndarray):
        np.savez(tmp_path / "own.npz", inputs=X, labels=Y, class_names=given)
        ways.append(lambda: datasets.load(f"npz:{tmp_path / 'own.npz'}", Reading()).class_names)
    if isinstance(expected, str) or isinstance(given, dict):
        ways.append(of_api)
    for way in ways:
        if isinstance(expected, str):
            with pytest.raises(UserError, match=expected):
                way()
        else:
            assert [*way()] == expected


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["caf\u00e9", "cafe\u0301", "bee"], r"'caf\xe9', 'cafe\u0301'"),
        (["cat", "c\u0430t"], r"'cat', 'c\u0430t'"),
        (["Cat", " cat"], "'Cat', ' cat'"),
        (["a\u200bb", "ab"], r"'a\u200bb', 'ab'"),
        (["T\u20111", "T-1"], r"'T\u20111', 'T-1'"),
        (["caf\u00e9", "cafe"], ""),
    ],
)
def test_names_that_look_alike_are_named_with_what_cannot_be_seen(
    names: list[str], alike: str
) -> None:
    told = [*_near("classes", names)]
    assert told == ([f"classes that look alike: {alike}"] if alike else [])


def rows(*lines: str, header: str = "a,b,note,label", n: int = 40) -> bytes:
    body = [f"{i / 7:.3f},{i % 5}.5,fine,{NAMES[i % 3]}" for i in range(n - len(lines))]
    return "\n".join([header, *body, *lines, ""]).encode()


COMMAS = rows().replace(b",", b";").replace(b".", b",")
CELLS: list[tuple[bytes, dict[str, Any], str]] = [
    (rows("<0.01,1.5,fine,ant"), {}, "column 'a' has '<0.01' in row 40, and numbers elsewhere"),
    (rows("?,1.5,fine,ant", "?,2.5,fine,bee"), {}, r"column 'a' has '\?' in row 39"),
    (COMMAS, {"sep": "semicolon"}, "'0,000' in row 1, and numbers elsewhere: set data.decimal=com"),
    (COMMAS.replace(b"0,000", b"0.000"), {"sep": "semicolon", "decimal": "comma"}, "decimal=point"),
    (rows(header="a, b, note, label"), {}, "no column 'label', but 'a', ' b', ' note', ' label'"),
    (rows(header="a,b,note,l\u0430bel"), {}, r"no column 'label', but 'a', 'b', 'note', 'l\\u0430"),
    (rows(header="0.3,1.5,7,ant"), {}, "no column 'label'.*called by numbers .0.3, 1.5, 7.: if"),
    (POINTER, {}, "t.csv: it is a Git LFS pointer: run git lfs pull"),
    (b"<!DOCTYPE html><title>404</title>", {}, "t.csv: it is a web page"),
    (b"sep=;\n" + rows(), {"sep": "semicolon"}, "data.sep"),
]


@pytest.mark.parametrize(("text", "how", "expected"), CELLS)
def test_a_table_that_was_written_otherwise_is_refused_by_row_and_value(
    text: bytes, how: dict[str, Any], expected: str
) -> None:
    Path("t.csv").write_bytes(text)
    with pytest.raises(UserError, match=expected):
        datasets.load("csv:t.csv", Reading(**how))


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        (rows('1,1.5,"open,ant', "2,1,fine,bee", '3,1.5,"open,ant'), {}, "a value of 3 lines in"),
        (rows(header="0.3,1.5,7,ant"), {"label_column": "ant"}, "columns are called by numbers"),
        (
            b'label,text\nham,"well\nspam,now\nham,"so\nspam,buy\nham,hello\n',
            {"text_column": "text", "max_tokens": 8},
            "column 'text' has a value of 3 lines in row 1",
        ),
        (rows(header="1,2,3,label"), {}, ""),
        (rows('1,1.5,"a, b",ant'), {}, ""),
        (
            b'label,text\nham,"well\nnow"\nspam,buy\n',
            {"text_column": "text", "max_tokens": 8},
            "",
        ),
    ],
)
def test_rows_that_are_lost_are_a_line(text: bytes, how: dict[str, Any], expected: str) -> None:
    Path("t.csv").write_bytes(text)
    notes = datasets.load("csv:t.csv", Reading(**how)).notes
    told = [note for note in notes if "lost in" in note]
    assert [*map(bool, told)] == [True] * bool(expected)
    assert not expected or expected in told[0]


def test_what_is_a_number_or_a_text_is_taken_as_it() -> None:
    Path("t.csv").write_bytes(b"sep=;\na;label\n" + b"1;+1\n2;-1\n3;+10\n4;+2\n" * 3)
    read = datasets.load("csv:t.csv", Reading(sep="semicolon"))
    assert read.class_names == ("-1", "1", "2", "10")
    texts = pa.array([NAMES[i % 3] for i in range(9)], pa.string_view())
    parquet.write_table(pa.table({"a": range(9), "label": texts}), "t.parquet")
    assert datasets.load("parquet:t.parquet", Reading()).class_names == tuple(NAMES)


@pytest.mark.parametrize("codes", [[250 + 7 * i for i in range(20)], [*range(-3, 9), 90]])
def test_numbers_with_gaps_have_to_be_confirmed_as_classes(codes: list[int]) -> None:
    labels = np.arange(400) % len(codes)
    named = datasets.Dataset("csv:t.csv", X[labels % 60], labels, tuple(map(str, codes)))
    with pytest.raises(UserError, match=f"set classes={len(codes)}"):
        check_classes(Experiment(), named)
    check_classes(Experiment(classes=len(codes)), named)


class Sparse:
    nnz, shape = 3, (60, 4)

    def toarray(self) -> Any:
        return X


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (Sparse(), r"inputs is a sparse matrix: give its .toarray\(\)"),
        ([[1.0] * (2 + i % 3) for i in range(60)], "its rows have 2 to 4 numbers"),
        ({"a": X}, "inputs is dict"),
        (iter(X), "inputs is array_iterator|inputs is .*iterator"),
    ],
    ids=["sparse", "ragged", "dict", "iterator"],
)
def test_inputs_that_are_no_array_are_called_by_what_they_are(
    inputs: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=expected):
        by_function(monkeypatch, lambda: (inputs, Y, NAMES))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"x": [[1.0] * (2 + i % 3) for i in range(9)], "label": [0, 1, 2] * 3}, "have 2 to 4 num"),
        ({"x": [1.0] * 9, "label": [[0, 1]] * 9}, r"holds list<.*a row has one class here"),
    ],
    ids=["ragged", "several labels"],
)
def test_columns_of_lists_are_a_line(column: dict[str, Any], expected: str) -> None:
    pytest.importorskip("datasets").Dataset.from_dict(column).save_to_disk("data")
    with pytest.raises(UserError, match=expected):
        datasets.load("hf:./data", Reading())


def folder(**classes: list[bytes]) -> None:
    for name, files in classes.items():
        place = Path(os.fsdecode(b"pics/" + os.fsencode(name)))
        place.mkdir(parents=True)
        for i, held in enumerate(files):
            (place / f"{i}.png").write_bytes(held)


def picture(form: str = "PNG", **how: Any) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 99, 199)).save(held, form, **how)
    return held.getvalue()


def with_text() -> bytes:
    text = PngImagePlugin.PngInfo()
    text.add_text("settings", "x" * 3_000_000, zip=True)
    return picture(pnginfo=text)


def grey_16(white_is_zero: bool) -> bytes:
    """A TIFF of 8 × 8 pixels of 16 bits, all of the grey 51400 of 65535."""
    stored = 65535 - 51400 if white_is_zero else 51400
    pixels = np.full((8, 8), stored, "<u2").tobytes()
    tags = [(256, 3, 8), (257, 3, 8), (258, 3, 16), (259, 3, 1), (262, 3, int(not white_is_zero))]
    tags += [(273, 4, 8), (277, 3, 1), (278, 3, 8), (279, 4, len(pixels))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    where = 8 + len(pixels)
    return b"II*\0" + struct.pack("<I", where) + pixels + struct.pack("<H", 9) + entries + bytes(4)


def huge() -> bytes:
    """A PNG whose header says 20,000 × 10,000 pixels."""
    held = bytearray(picture())
    held[16:24] = struct.pack(">II", 20_000, 10_000)
    import zlib

    held[29:33] = struct.pack(">I", zlib.crc32(held[12:29]))
    return bytes(held)


def test_pixels_are_as_the_file_says() -> None:
    folder(ant=[with_text()] * 2, bee=[grey_16(True)] * 2, cat=[grey_16(False)] * 2)
    images = datasets.load("folder:pics", Reading()).inputs
    assert images[:, 0, 0].tolist() == [[9, 99, 199]] * 2 + [[200] * 3] * 4


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"ant": [POINTER], "bee": [picture()]}, r"0.png: no readable image \(it is a Git LFS"),
        ({"ant": [huge()], "bee": [picture()]}, r"200000000 pixels; allowed: at most 178956970"),
        ({"caf\udce9": [picture()], "bee": [picture()]}, r"name 'caf\\udce9' is not UTF-8"),
        ({"train/ant": [picture()], "dev/ant": [picture()]}, "dev, train are called as parts"),
    ],
    ids=["pointer", "bomb", "no UTF-8", "parts"],
)
@pytest.mark.parametrize("subfolders", [False, True])
def test_a_folder_of_images_says_what_is_wrong(
    classes: dict[str, list[bytes]], expected: str, subfolders: bool
) -> None:
    folder(**classes)
    with pytest.raises(UserError, match=expected):
        datasets.load("folder:pics", Reading(subfolders=subfolders))


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_a_pipe_is_no_file_of_data(tmp_path: Path, form: str) -> None:
    os.mkfifo(tmp_path / f"t.{form}")
    with pytest.raises(UserError, match="is no regular file"):
        datasets.load(f"{form}:{tmp_path}/t.{form}")
