"""Models of series, of tables and of images of any size put to use: asked, evaluated and exported,
on raw inputs."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pfedlora_flwr.data.images import read_image
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Call, Done, keys_in, run_locally

COLUMNS = {"age": (50, 12), "pressure": (1e5, 2e3), "dose": (1e-4, 1e-5), "height": (170, 9)}
"""Mean and standard deviation of each: units that only normalised inputs can bear."""
KEYS = keys_in(
    "method=standalone partition.kind=natural clients=2 rounds=2 optimizer=adamw lr=0.003 "
    "batch-size=16"
)


def table(n: int, seed: int) -> dict[str, Any]:
    """Patients of two hospitals; who is ill is told by all columns together."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(n, len(COLUMNS)))
    columns = {
        name: drawn[:, i] * std + mean for i, (name, (mean, std)) in enumerate(COLUMNS.items())
    }
    return {
        "hospital": [f"h{i % 2}" for i in range(n)],
        **columns,
        "ill": np.where(drawn.sum(1) > 0, "yes", "no"),
    }


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("table")
    pyarrow.csv.write_csv(pa.table(table(300, 0)), folder / "patients.csv")
    keys = {
        "dataset": f"csv:{folder}/patients.csv",
        "data.label-column": "ill",
        "data.client-column": "hospital",
    }
    return run_locally(folder / "run", KEYS | keys)


@pytest.fixture(scope="module")
def series_run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two channels of 16 steps: a slow and a fast wave, in volts far from 0."""
    folder, rng = tmp_path_factory.mktemp("series"), np.random.default_rng(0)
    labels = np.arange(200) % 2
    waves = np.sin(
        np.arange(16) * np.array([[0.5], [1.5]])[labels][:, None] + rng.uniform(0, 6, (200, 2, 1))
    )
    np.savez(
        folder / "waves.npz",
        inputs=1000 + 5 * waves,
        labels=labels,
        class_names=["slow", "fast"],
        clients=np.arange(200) // 100,
    )
    return run_locally(folder / "run", KEYS | {"dataset": f"npz:{folder}/waves.npz"})


def data_of(run: Done, client: int) -> tuple[np.ndarray, np.ndarray]:
    """The client's test part: inputs and labels."""
    setup = DataSetup(RunDirectory(run.output).experiment())
    dataset, partition = setup.dataset, setup.partition
    test = partition.clients[client].test
    return np.asarray(dataset.inputs[test]), np.asarray(dataset.labels[test])


def shares(text: str) -> list[float]:
    """The probability of `no`, by row."""
    return [
        next(c["probability"] for c in row["classes"] if c["name"] == "no")
        for row in json.loads(text)
    ]


@pytest.mark.slow
def test_rows_of_a_table_are_asked_by_the_names_of_their_columns(
    table_run: Done, pfedlora: Call, tmp_path: Path
) -> None:
    new, run = table(8, 1), str(table_run.output)
    pyarrow.csv.write_csv(pa.table(new), tmp_path / "same.csv")
    turned = {name: new[name] for name in reversed(COLUMNS)} | {"note": ["…"] * 8}
    pq.write_table(pa.table(turned), tmp_path / "turned.parquet")
    np.save(tmp_path / "plain.npy", np.stack([new[name] for name in COLUMNS], 1))
    said = []
    (tmp_path / "same.CSV.gz").write_bytes(gzip.compress((tmp_path / "same.csv").read_bytes()))
    for file in ("same.csv", "turned.parquet", "plain.npy", "same.CSV.gz"):
        code, out, err = pfedlora("predict", run, "--client", "1", file, "--json")
        assert (code, err) == (0, "")
        assert [(row["client"], row["file"], row["row"]) for row in json.loads(out)] == [
            (1, file, i) for i in range(1, 9)
        ]
        said.append(shares(out))
    assert said[0] == said[1] == said[2] == said[3]
    trained = load_trained(table_run.output, 1)
    raw = np.stack([new[name] for name in COLUMNS], 1)
    assert trained.feature_names == tuple(COLUMNS)
    assert said[0] == pytest.approx(trained.logits(raw).softmax(1)[:, 0].tolist())
    _, out, _ = pfedlora("predict", run, "--all-clients", ".", "--csv", "--top", "1")
    rows = list(csv.reader(out.splitlines()))
    assert rows[0] == ["client", "file", "row", "class_1", "probability_1"]
    assert [row[:3] for row in rows[1:]] == [
        [client, file, str(i)]
        for client in "01"
        for file in ("plain.npy", "same.CSV.gz", "same.csv", "turned.parquet")
        for i in range(1, 9)
    ]
    _, out, _ = pfedlora("predict", run, "--client", "1", "same.csv", "--top", "1")
    assert [line.partition(": ")[0] for line in out.splitlines()] == [
        f"same.csv, row {i}" for i in range(1, 9)
    ]


def test_series_are_asked_from_arrays(series_run: Done, pfedlora: Call, tmp_path: Path) -> None:
    inputs, labels = data_of(series_run, 0)
    np.savez(tmp_path / "windows.npz", windows=inputs.astype(np.float64))
    code, out, err = pfedlora(
        "predict", str(series_run.output), "--client", "0", "windows.npz", "--json", "--top", "1"
    )
    assert (code, err) == (0, "")
    correct = [
        row["classes"][0]["name"] == ["slow", "fast"][label]
        for row, label in zip(json.loads(out), labels, strict=True)
    ]
    assert np.mean(correct) == series_run.result["per_client"]["0"]["accuracy"]


@pytest.mark.slow
def test_what_a_model_cannot_take_is_one_line_each(
    table_run: Done, series_run: Done, pfedlora: Call, tmp_path: Path
) -> None:
    new = table(8, 1)
    pyarrow.csv.write_csv(
        pa.table({name: new[name] for name in ("age", "dose")}), tmp_path / "few.csv"
    )
    pyarrow.csv.write_csv(pa.table(new | {"dose": ["low"] * 8}), tmp_path / "words.csv")
    pyarrow.csv.write_csv(pa.table(new).slice(0, 0), tmp_path / "none.csv")
    (tmp_path / "broken.parquet").write_text("no table")
    (tmp_path / "a.png").write_text("no picture")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "wide.npy", np.zeros((3, 5)))
    np.save(tmp_path / "holes.npy", np.full((3, 4), np.nan))
    np.savez(tmp_path / "two.npz", a=np.zeros((3, 4)), b=np.zeros((3, 4)))
    for path, expected in (
        ("few.csv", "few.csv: it has no column 'pressure', but age, dose"),
        ("words.csv", "words.csv: column 'dose' holds string, and features are numbers"),
        ("none.csv", "none.csv: it has no rows"),
        ("broken.parquet", "broken.parquet: no readable table"),
        ("gone.csv", "gone.csv does not exist"),
        ("gone.npy", "gone.npy: no such file"),
        ("a.png", "a.png: the model takes vectors [4]; expected one of .csv, .parquet, .npz, .npy"),
        ("empty", "empty: no file of vectors (.csv, .parquet, .npz, .npy) in this folder"),
        (
            "wide.npy",
            (
                "wide.npy: it holds float64 [3, 5], and the model takes vectors; expected an array"
                " [n, 4]"
            ),
        ),
        ("holes.npy", "holes.npy: inputs[0, 0] is nan; expected finite numbers"),
        ("two.npz", "two.npz: expected an array [n, 4], in an .npz file as `inputs`"),
    ):
        code, out, err = pfedlora("predict", str(table_run.output), "--client", "0", path)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert expected in err
    _, _, err = pfedlora("predict", str(series_run.output), "--client", "0", "few.csv")
    assert err == "error: few.csv: the model takes series [2, 16]; expected one of .npz, .npy\n"


def test_evaluation_takes_a_tables_columns_by_name_and_refuses_other_inputs(
    table_run: Done, pfedlora: Call, tmp_path: Path
) -> None:
    run = str(table_run.output)
    _, out, _ = pfedlora("evaluate", run, "--all-clients", "--json")
    assert [found["accuracy"] for found in json.loads(out)] == [
        row["accuracy"] for row in table_run.result["per_client"].values()
    ]
    new = table(60, 1)
    turned = {name: new[name] for name in ("ill", *reversed(COLUMNS))}
    pyarrow.csv.write_csv(pa.table(turned | {"note": ["…"] * 60}), tmp_path / "new.csv")
    code, out, err = pfedlora("evaluate", run, "--client", "0", "csv:new.csv", "--json")
    assert (code, err) == (0, "")
    logits = load_trained(table_run.output, 0).logits(
        np.stack([new[name] for name in COLUMNS], 1).astype(np.float32)
    )
    assert json.loads(out)["accuracy"] == np.mean(
        np.array(["no", "yes"])[logits.argmax(1)] == new["ill"]
    )
    _, out, _ = pfedlora("evaluate", run, "--client", "0", "csv:new.csv")
    assert "(over 60 samples)" in out
    np.savez(tmp_path / "wide.npz", inputs=np.zeros((20, 5)), labels=np.arange(20) % 2)
    for data, expected in (
        (
            "npz:wide.npz",
            "npz:wide.npz holds vectors of 5, and the model of client 0 takes vectors of 4",
        ),
        ("digits", "digits holds images of 3x32x32, and the model of client 0 takes vectors of 4"),
    ):
        code, out, err = pfedlora("evaluate", run, "--client", "0", data)
        assert (code, out, err) == (2, "", f"error: {expected}\n")


def with_the_file_alone(
    file: Path, rows: np.ndarray, columns: list[str]
) -> tuple[np.ndarray, list[str]]:
    """The logits [n, classes] of raw rows whose columns are in any order, and the classes' names.

    By a program that knows nothing but what the ONNX file says.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    wanted, todo = json.loads(about["feature_names"]), json.loads(about["preprocessing"])
    x = rows[:, [columns.index(name) for name in wanted]] if wanted else rows
    assert list(x.shape[1:]) == json.loads(about["input"])[1:]
    if todo["do_normalize"]:
        x = (x - np.array(json.loads(about["mean"]))) / np.array(json.loads(about["std"]))
    [logits] = session.run(None, {"inputs": x.astype(json.loads(about["input_dtype"]))})
    return logits, json.loads(about["class_names"])


@pytest.mark.slow
def test_exports_take_raw_inputs(
    table_run: Done, series_run: Done, pfedlora: Call, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    waves, _ = data_of(series_run, 1)
    rows = np.stack([table(40, 1)[name] for name in COLUMNS], 1).astype(np.float32)
    for kind, run, inputs in (("series", series_run, waves), ("vectors", table_run, rows)):
        own = load_trained(run.output, 1)
        logits = own.logits(inputs)
        for form, file in (
            ("onnx", "a.onnx"),
            ("torch-export", "a.pt2"),
            ("safetensors", "a.safetensors"),
        ):
            words = (
                "export",
                str(run.output),
                "--client",
                "1",
                "--format",
                form,
                "--output",
                file,
                "--overwrite",
            )
            assert pfedlora(*words)[0] == 0
        turned = inputs[:, ::-1] if kind == "vectors" else inputs
        found, names = with_the_file_alone(tmp_path / "a.onnx", turned, [*reversed(COLUMNS)])
        assert (found, names) == (pytest.approx(logits.numpy(), abs=1e-4), list(own.class_names))
        program = torch.export.load(tmp_path / "a.pt2").module()
        exact = torch.from_numpy(inputs.astype(np.float64))
        torch.testing.assert_close(program(exact), logits, rtol=0, atol=1e-4)
        card = (tmp_path / "a.onnx.md").read_text()
        shape = ", ".join(map(str, inputs.shape[1:]))
        assert (
            f"Input `inputs`: {kind}, float64 [n, {shape}], in the units of the training data"
            in card
        )
        assert ("their columns age, pressure, dose, height" in card) == (kind == "vectors")


@pytest.fixture(scope="module")
def images_run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Grey images that are higher than wide: dark above, or dark below; for one client a model of
    timm, for the other a CNN."""
    pytest.importorskip("timm")
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    labels = np.arange(80) % 2
    images = rng.integers(100, 256, (80, 40, 32), dtype=np.uint8)
    images[labels == 0, :20] //= 2
    images[labels == 1, 20:] //= 2
    np.savez(
        folder / "grey.npz",
        images=images,
        labels=labels,
        class_names=["above", "below"],
        clients=np.arange(80) // 40,
    )
    models = {"models": "timm:test_efficientnet,cnn5", "batch-size": 8}
    return run_locally(folder / "run", KEYS | {"dataset": f"npz:{folder}/grey.npz"} | models)


def from_a_picture(file: Path, picture: Image.Image) -> list[float]:
    """The logits of one picture, by a program that knows nothing but what the ONNX file says."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    todo = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    mode = "RGB" if todo["do_convert_rgb"] else "L" if todo["do_grayscale"] else picture.mode
    sized = picture.convert(mode).resize(
        (todo["size"]["width"], todo["size"]["height"]), Image.Resampling(todo["resample"])
    )
    x = np.asarray(sized, np.float32).reshape(*sized.size[::-1], -1) * np.float32(
        todo["rescale_factor"]
    )
    assert (todo["data_format"], todo["do_normalize"]) == ("channels_first", False)
    [logits] = session.run(None, {"images": x.transpose(2, 0, 1)[None]})
    return logits[0].tolist()


@pytest.mark.slow
def test_a_model_of_timm_is_asked_and_exported_at_its_own_size_and_channels(
    images_run: Done, pfedlora: Call, tmp_path: Path
) -> None:
    picture = Image.fromarray(
        np.random.default_rng(1).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    )
    picture.save(tmp_path / "any.png")
    run = str(images_run.output)
    code, out, err = pfedlora("predict", run, "--all-clients", "any.png", "--json")
    assert (code, err) == (0, "")
    code, _, err = pfedlora(
        "export", run, "--client", "0", "--format", "onnx", "--output", "timm.onnx"
    )
    assert code == 0, err
    logits = from_a_picture(tmp_path / "timm.onnx", picture)
    trained = load_trained(images_run.output, 0)
    own = trained.logits(np.stack([read_image(tmp_path / "any.png", (40, 32), grey=True)[0]]))
    assert logits == pytest.approx(own[0].tolist(), abs=1e-4)
    said = {c["name"]: c["probability"] for c in json.loads(out)[0]["classes"]}
    assert [said["above"], said["below"]] == pytest.approx(
        torch.tensor(logits).softmax(0).tolist(), abs=1e-4
    )
    card = (tmp_path / "timm.onnx.md").read_text()
    assert "Input `images`: images grey, float32 [n, 1, 40, 32], scaled to [0, 1]" in card
    assert "| architecture | timm:test_efficientnet, " in card
