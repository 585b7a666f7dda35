"""Numbers of any size keep their digits until they are centred: judged against numpy in float64."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.data.normalisation import of_parts
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Call, run_locally

N = 400
EVEN = np.arange(N) % 2
NUMBERS = {
    "unix seconds": 1_700_000_000 + np.arange(N) // 4,
    "ids of 1e16": 10**16 + 2 * np.arange(N),
    "prices with cents": 4_999_999.01 + np.arange(N) / 100,
    "milliseconds": 1_700_000_000_000 + np.arange(N),
    "small": np.linspace(-1, 1, N),
}
"""Of all but the last, float32 keeps fewer than half of the distinct values."""


def expected(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    exact = np.asarray(values, np.float64)
    return (exact - exact[train].mean()) / exact[train].std()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("form", ["csv", "parquet", "npz vectors", "npz series", "own csv"])
def test_models_see_what_float64_gives(form: str, name: str, tmp_path: Path) -> None:
    values, kind = NUMBERS[name], form.split()[-1]
    table = pa.table({"t": values, "label": EVEN})
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    pq.write_table(table, tmp_path / "t.parquet")
    shape = (N, 1, 1) if kind == "series" else (N, 1)
    np.savez(tmp_path / "t.npz", inputs=values.reshape(shape), labels=EVEN)
    dataset = f"npz:{tmp_path}/t.npz" if "npz" in form else f"{kind}:{tmp_path}/t.{kind}"
    keys = {"clients": 1, "partition.kind": "iid", "dataset": dataset}
    if form == "own csv":  # of a real node, whose server has no data
        keys |= {"dataset": "digits", "classes": 2, "input-shape": "1"}
    e = from_flat(keys)
    site = Site.find(e, 0, {"dataset": dataset} if form == "own csv" else {})
    seen = site.load(torch.device("cpu")).test.batch(slice(None))
    assert seen.dtype == torch.float32
    wanted = expected(values, site.split.train)[site.split.test]
    assert np.allclose(seen.numpy().reshape(-1), wanted, rtol=1e-5, atol=1e-6)
    assert not [note for note in site.dataset.notes if "float32" in note]


def test_a_column_that_keeps_fewer_than_half_of_its_values_is_named(tmp_path: Path) -> None:
    columns = {
        "nanoseconds": 1_700_000_000_000_000_000 + np.arange(N),
        "t": NUMBERS["unix seconds"],
        "heavy tail": np.append(np.arange(N - 1), 1e12),
    }
    pq.write_table(pa.table(columns | {"label": EVEN}), tmp_path / "t.parquet")
    [note] = datasets.load(f"parquet:{tmp_path}/t.parquet").notes
    assert "values, even normalised, of: nanoseconds (keeps 3 of 400), heavy tail (keeps" in note
    channels = np.stack([columns["t"], columns["nanoseconds"]], 1)[:, :, None]
    np.savez(tmp_path / "t.npz", inputs=channels, labels=EVEN)
    [note] = datasets.load(f"npz:{tmp_path}/t.npz").notes
    assert "of: channel 1 (keeps 3 of 400): subtract an offset" in note


def test_what_differs_by_rounding_alone_is_constant() -> None:
    rounded = np.full(N, 0.3)
    rounded[::2] = 0.1 + 0.2
    inputs = np.stack([rounded, np.full(N, 1e6), np.full(N, 0.0), np.arange(N)], 1)
    mean, std = of_parts(inputs, [np.arange(N)])
    assert std[:3] == (1, 1, 1)
    assert std[3] == pytest.approx(np.arange(N).std(), rel=1e-12)
    assert np.abs((inputs - mean)[:, :3]).max() < 1e-15


def test_arrays_whose_type_float32_holds_stay_small(tmp_path: Path) -> None:
    for kind, kept in (("f4", "f4"), ("f2", "f4"), ("i2", "f4"), ("i4", "f8"), ("f8", "f8")):
        np.savez(tmp_path / f"{kind}.npz", inputs=EVEN.reshape(-1, 1).astype(kind), labels=EVEN)
        assert datasets.load(f"npz:{tmp_path}/{kind}.npz").inputs.dtype == np.dtype(kept)


@pytest.mark.slow
def test_unix_seconds_are_learned_predicted_evaluated_and_exported(
    pfedlora: Call, tmp_path: Path
) -> None:
    late = np.array(["early", "late"])[(np.arange(N) >= N / 2).astype(int)]
    columns = {name: NUMBERS[name] for name in ("unix seconds", "ids of 1e16")}
    pyarrow.csv.write_csv(pa.table(columns | {"label": late}), tmp_path / "t.csv")
    keys = {"method": "standalone", "partition.kind": "iid", "clients": 1, "rounds": 3, "lr": 0.1}
    run = run_locally(tmp_path / "run", keys | {"dataset": f"csv:{tmp_path}/t.csv"})
    assert run.result["per_client"]["0"]["accuracy"] >= 0.95
    folder, data = str(run.output), f"csv:{tmp_path}/t.csv"
    code, out, _ = pfedlora("evaluate", folder, "--client", "0", data, "--json")
    assert (code, json.loads(out)["accuracy"] >= 0.95) == (0, True)
    raw = np.stack([*columns.values()], 1)
    own = load_trained(run.output, 0).logits(raw.astype(np.float64))
    code, out, _ = pfedlora("predict", folder, "--client", "0", str(tmp_path / "t.csv"), "--json")
    said = [row["classes"][0]["name"] for row in json.loads(out)]
    assert (code, np.mean(said == late) >= 0.95) == (0, True)
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export = ("export", folder, "--client", "0", "--format", "onnx", "--output", "t.onnx")
    assert pfedlora(*export)[0] == 0
    session = onnxruntime.InferenceSession("t.onnx", providers=["CPUExecutionProvider"])
    [logits] = session.run(None, {"inputs": raw.astype(np.float64)})
    assert logits == pytest.approx(own.numpy(), abs=1e-4)
    assert "float64 [n, 2], in the units" in (tmp_path / "t.onnx.md").read_text()
