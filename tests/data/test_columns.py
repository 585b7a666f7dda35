"""Columns as other programs write them: the types of arrays in a Hugging Face dataset, and what
pandas makes of an index, of truth values, of text and of what is missing."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pfedlora_flwr.api.inputs import inputs_of
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets, tables
from pfedlora_flwr.data.local import forget
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.data.source import Arrays, Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.evaluate import _load
from pfedlora_flwr.runs.trained import Trained, _filled
from pfedlora_flwr.training.kinds import IMAGES, SERIES, VECTORS, Kind

pytestmark = pytest.mark.usefixtures("own_place")

N = 40
EVEN = np.arange(N) % 2
SECONDS = 1.7e9 + np.arange(N)
BYTES = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), np.uint8)


def saved(feature: Any, values: list[Any]) -> str:
    """A Hugging Face dataset of one column beside its labels."""
    hf = pytest.importorskip("datasets")
    labels = hf.ClassLabel(names=["a", "b"])
    rows = {"x": values, "label": [i % 2 for i in range(len(values))]}
    features = hf.Features({"x": feature, "label": labels})
    hf.Dataset.from_dict(rows, features=features).save_to_disk("saved")
    return "hf:saved"


@pytest.mark.parametrize(
    ("name", "dtype", "values", "kind", "kept"),
    [
        ("List", "float64", np.stack([SECONDS, SECONDS / 3], 1), VECTORS, "f8"),
        ("Array2D", "float64", SECONDS.reshape(-1, 1, 1), SERIES, "f8"),
        ("Array2D", "float32", np.ones((N, 2, 3), "f4"), SERIES, "f4"),
        ("Array2D", "int64", np.ones((N, 2, 3), "i8"), SERIES, "f8"),
        ("Array2D", "uint8", BYTES[..., 0], IMAGES, "u1"),
        ("Array3D", "uint8", BYTES, IMAGES, "u1"),
    ],
)
def test_arrays_of_a_hugging_face_dataset_keep_their_type(
    name: str, dtype: str, values: np.ndarray, kind: Kind, kept: str
) -> None:
    hf = pytest.importorskip("datasets")
    value = hf.Value(dtype)
    feature = hf.List(value) if name == "List" else getattr(hf, name)(values.shape[1:], dtype)
    dataset = datasets.load(saved(feature, values.tolist()))
    assert (dataset.kind, dataset.inputs.dtype) == (kind, np.dtype(kept))
    assert np.array_equal(dataset.inputs.reshape(values.shape), values)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_a_value_that_is_missing_in_an_array_is_no_number(dtype: str) -> None:
    hf = pytest.importorskip("datasets")
    name = saved(hf.List(hf.Value(dtype)), [[1, 2], [3, None]])
    with pytest.raises(UserError, match="column 'x' has arrays in which a value is missing: fill"):
        datasets.load(name)
    saved(hf.List(hf.Value(dtype)), [[1, 2], None, [3, 4]])
    datasets.load.cache_clear()
    with pytest.raises(UserError, match="column 'x' has no value in row 2, and 1 are missing"):
        datasets.load(name)


def test_a_row_index_with_a_name_is_left_out_and_named(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = {"patient": np.arange(N) + 1000, "site": EVEN, "x": SECONDS, "label": EVEN}
    frame = pandas.DataFrame(rows).set_index(["patient", "site"])
    frame.to_parquet(tmp_path / "t.parquet")
    dataset = datasets.load("parquet:t.parquet", Reading(client_column="site"))
    assert dataset.feature_names == ("x",)
    assert dataset.notes == ("left out: the row index of pandas: patient",)
    named = datasets.load("parquet:t.parquet", Reading(feature_names=("patient", "x")))
    assert named.feature_names == ("patient", "x"), "a model that has it is given it"
    assert [note.split(":")[1] for note in named.notes] == [
        " patient; what is no feature is left out by data.drop"
    ]
    bad = pa.table({"x": EVEN, "label": EVEN}).replace_schema_metadata({"pandas": "[1"})
    pq.write_table(bad, tmp_path / "bad.parquet")
    assert datasets.load("parquet:bad.parquet").feature_names == ("x",)


def told_of(labels: list[str], sites: list[str]) -> str:
    rows = [
        f"{i},{label},{site}\n" for i, (label, site) in enumerate(zip(labels, sites, strict=True))
    ]
    Path("t.csv").write_text("x,label,site\n" + "".join(rows))
    keys = {"dataset": "csv:t.csv", "data.client-column": "site", "clients": 1}
    datasets.load.cache_clear()
    forget()
    return "\n".join(DataSetup(from_flat(keys | {"partition.kind": "iid"})).remarks)


def test_names_of_what_is_missing_are_told() -> None:
    told = told_of(["sick", "NA", "nan", "nano"] * 10, ["north", "null"] * 20)
    line = "{} that are called as missing values are: {}: if they are missing, fill or remove them"
    assert line.format("classes", "'NA', 'nan'") in told.splitlines()
    assert line.format("owners", "'null'") in told.splitlines()
    assert "missing" not in told_of(["sick", "well"] * 20, ["nantes", "none"] * 20)


def test_truth_values_go_by_the_names_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1,True\n2,False\n3,True\n")
    assert datasets.load("csv:t.csv").class_names == ("false", "true")
    for names in (("False", "True"), ("TRUE", "FALSE"), ("false", "true")):
        dataset = datasets.load("csv:t.csv", Reading(class_names=names))
        found = [dataset.class_names[i].casefold() for i in dataset.labels]
        assert (dataset.class_names, found) == (names, ["true", "false", "true"])
    with pytest.raises(UserError, match=r"'label' has false, and data\.class-names no, True"):
        datasets.load("csv:t.csv", Reading(class_names=("no", "True")))


def given(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> Arrays:
    """What a function's return value becomes."""
    module = ModuleType("own_frame")
    cast("Any", module).data = lambda: {"labels": EVEN, "class_names": ["a", "b"], **parts}
    monkeypatch.setitem(sys.modules, "own_frame", module)
    return datasets.find("own_frame:data").read("own_frame:data", Reading())


def test_columns_of_a_frame_are_numbers_and_owners_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "x": SECONDS,
            "who": ["ann", "bob"] * 20,
            "count": pandas.array(range(N), dtype="Int64"),
            "price": [Decimal("0.5")] * N,
        }
    )
    numbers = pandas.get_dummies(frame, columns=["who"])
    found = given(monkeypatch, inputs=numbers, clients=frame["who"])
    assert found.feature_names == ("x", "count", "price", "who_ann", "who_bob")
    wanted = np.stack([SECONDS, np.arange(N), np.full(N, 0.5), 1 - EVEN, EVEN], 1)
    assert np.array_equal(found.inputs, wanted)
    assert found.owners is not None
    assert (found.owners.dtype.kind, found.owners.tolist()) == ("U", ["ann", "bob"] * 20)
    assert given(monkeypatch, inputs=numbers[["who_ann"]]).inputs.dtype == np.float32
    twice = pandas.DataFrame(np.ones((N, 2)), columns=[0, 0]).assign(flag=True)
    twice.columns = [0, 0, 1]
    assert given(monkeypatch, inputs=twice).inputs.shape == (N, 3)
    days = frame[["x"]].assign(day=pandas.Timestamp("2026-01-01"))
    gaps = frame[["x"]].assign(gap=pandas.array([None, True] * 20, dtype="boolean"))
    for parts, told in (
        ({"inputs": frame}, "column 'who' has str at index 0, and features are numbers: turn it"),
        ({"inputs": days}, r"column 'day' holds datetime64\[.*\], and features are numbers"),
        ({"inputs": gaps}, "column 'gap' has NAType at index 0, and features are numbers"),
        (
            {"inputs": numbers, "clients": ["a", None] * 20},
            "clients has None at index 1; expected integers or text",
        ),
        ({"inputs": numbers, "labels": frame["who"]}, "number the classes from 0, and name them"),
    ):
        with pytest.raises(UserError, match=f"^dataset 'own_frame:data': .*{told}"):
            given(monkeypatch, **parts)


def model(features: tuple[str, ...], **keys: Any) -> Trained:
    """What a prediction and an evaluation ask of a model of vectors before they use it."""
    found = {"experiment": from_flat({"clients": 1, **keys}), "client": 0}
    task = Task(2, (len(features),), VECTORS)
    return cast("Trained", SimpleNamespace(task=task, feature_names=features, **found))


def test_a_model_of_a_csv_predicts_what_pandas_reads_of_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    text = "".join(f"{i / 4},{bool(i % 3)},{'ab'[i % 2]}\n" for i in range(N))
    (tmp_path / "t.csv").write_text(f"x,flag,label\n{text}")
    trained = model(datasets.load("csv:t.csv").feature_names or ())
    found = inputs_of(trained, pandas.read_csv("t.csv"), {})
    assert np.array_equal(found, inputs_of(trained, "t.csv", {}))
    with pytest.raises(UserError, match=r"^inputs: column 'flag' has str at index 0, and features"):
        inputs_of(trained, pandas.read_csv("t.csv").assign(flag="yes"), {})


def test_what_is_evaluated_has_no_owner_for_a_label() -> None:
    hf = pytest.importorskip("datasets")
    classes = {"writer": hf.ClassLabel(names=["w", "v"]), "kind": hf.ClassLabel(names=["a", "b"])}
    rows = {"x": [*range(N)], "writer": [i // 20 for i in range(N)], "kind": EVEN.tolist()}
    features = hf.Features({"x": hf.Value("float32"), **classes})
    whole = hf.Dataset.from_dict(rows, features=features)
    whole.save_to_disk("whole")
    whole.remove_columns("writer").save_to_disk("other")
    keys = {"dataset": "hf:whole", "data.client-column": "writer", "partition.kind": "natural"}
    for name in ("hf:whole", "hf:other"):
        dataset = _load(model(("x",), **keys), name, {"data-path": ""})
        assert (dataset.class_names, dataset.owners) == (("a", "b"), None)
        assert dataset.labels.tolist() == EVEN.tolist()


def test_what_fills_a_models_classes_has_a_name_of_its_own() -> None:
    assert _filled(["a"], 3) == ["a", "class 1", "class 2"]
    assert _filled(["class 1", "class 2"], 3) == ["class 1", "class 2", "unnamed class 2"]


def test_time_grows_with_the_columns_and_not_with_their_square() -> None:
    """Of 5,000 columns, as of genes; by their square it took over 100 s."""
    table = pa.table({f"g{i}": [0.5, 1.5] for i in range(5000)})
    begun = time.process_time()
    assert tables.features_of("t.csv", table, table.column_names, Reading()).shape == (2, 5000)
    assert time.process_time() - begun < 1.5
