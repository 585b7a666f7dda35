"""Classes, functions and arrays in the place of names."""

from __future__ import annotations

import json
import linecache
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import pfedlora_flwr
from pfedlora_flwr.api.comparing import content_of
from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.processes import free_port
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from tests.api.modules import Alone, Small
from tests.conftest import ROOT

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(120, 12)).astype(np.float32)
LABELS = (ROWS[:, 0] > 0).astype(int) + (ROWS[:, 1] > 0)
SMALL: dict[str, Any] = {
    "clients": 3,
    "rounds": 1,
    "batch_size": 16,
    "partition_kind": "iid",
    "device": "cpu",
    "progress": False,
}


def made(width: int) -> type[nn.Module]:
    """A class that another process cannot import."""

    class Net(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, width), nn.ReLU())
            self.head = nn.Linear(width, classes)

    return Net


def named(found: Any, key: str = "models") -> str:
    return str(Given().value(key, found))


def test_what_can_be_imported_goes_by_its_path() -> None:
    assert named(Small) == "tests.api.modules:Small"
    assert named([Small, "cnn5"]) == "tests.api.modules:Small,cnn5"
    assert named(Alone, "method") == "tests.api.modules:Alone"
    assert named(PFedLoRA, "method") == "pfedlora"


def test_a_comparison_takes_objects_tuples_and_arrays_on_its_axes() -> None:
    axes = {
        "models": ([Small, "cnn5"], "cnn5"),
        "local_epochs": range(1, 3),
        "lr": {"tune": np.array([0.5, 0.25]), "methods": (PFedLoRA,)},
        "setting": ({"batch_size": np.int64(8)}, {"partition": {"kind": "iid"}}),
    }
    conf = {"methods": (PFedLoRA, Alone), "seeds": np.arange(2), "axes": axes}
    assert content_of(conf, Given()) == {
        "methods": ["pfedlora", "tests.api.modules:Alone"],
        "seeds": [0, 1],
        "axes": {
            "models": ["tests.api.modules:Small,cnn5", "cnn5"],
            "local-epochs": [1, 2],
            "lr": {"tune": [0.5, 0.25], "methods": ["pfedlora"]},
            "setting": [{"batch-size": 8}, {"partition.kind": "iid"}],
        },
    }


def test_a_key_of_two_axes_is_refused() -> None:
    with pytest.raises(UserError, match="axes: batch-size is there twice"):
        content_of({"axes": {"batch_size": [8], "batch-size": [16]}}, Given())
    assert content_of({"axes": {3: [1]}}, Given()) == {"axes": {3: [1]}}


def test_what_cannot_goes_by_its_name_and_the_hash_of_its_source_and_of_what_that_uses() -> None:
    name = named(made(8))
    assert name.startswith("given.x")
    assert name.endswith(".tests.api.test_objects.made.locals:Net")
    assert named(made(8)) == name
    assert named(made(9)) != name


def cell(text: str, number: int, namespace: dict[str, Any]) -> dict[str, Any]:
    """A notebook's cell, as IPython runs it."""
    file = f"<cell {number}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace


NET = """
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.encoder = nn.Linear(12, WIDTH)
        self.head = nn.Linear(WIDTH, classes)
"""


def test_a_class_of_a_notebook_is_hashed_with_the_globals_it_uses() -> None:
    notebook = cell(f"WIDTH = 8\nunused = 1\n{NET}", 1, {"__name__": "__main__", "nn": nn})
    first = named(notebook["Net"])
    assert first.endswith(".__main__:Net")
    notebook["unused"] = 2
    assert named(notebook["Net"]) == first
    notebook["WIDTH"] = 9
    assert named(notebook["Net"]) != first
    notebook["WIDTH"] = 8
    other = cell(NET.replace("nn.Linear(12", "nn.Linear( 12"), 2, notebook)
    assert named(other["Net"]) != first


class Config:
    """Of a user's own."""

    def __init__(self, width: int) -> None:
        self.width, self.itself = width, self


def twice(number: int) -> int:
    return 2 * number


def thrice(number: int) -> int:
    return 3 * number


def frame(value: float, name: str = "x") -> Any:
    return pytest.importorskip("pandas").DataFrame({name: [value, 1.0]})


def cyclic(value: int) -> list[Any]:
    found: list[Any] = [value]
    return [*found, found, (found.append(found), found)]


VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a number of NumPy": (lambda: np.int64(32), lambda: np.int64(64)),
    "a range": (lambda: range(3), lambda: range(9)),
    "a type of tensors": (lambda: torch.float32, lambda: torch.float64),
    "a partial": (lambda: partial(nn.Linear, 3, 4), lambda: partial(nn.Linear, 3, 8)),
    "its function": (lambda: partial(nn.Linear, 3), lambda: partial(nn.Conv2d, 3)),
    "a function in C": (lambda: torch.relu, lambda: torch.tanh),
    "a cached function": (lambda: lru_cache(twice), lambda: lru_cache(thrice)),
    "a method": (lambda: Config(1).__init__, lambda: Config(2).__init__),
    "a namespace": (lambda: SimpleNamespace(p=[0.1]), lambda: SimpleNamespace(p=[0.5])),
    "an instance": (lambda: Config(32), lambda: Config(64)),
    "a module": (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.5)),
    "its weights": (lambda: nn.Linear(1, 1).requires_grad_(), lambda: nn.Linear(1, 2)),
    "a tensor": (lambda: torch.ones(2, dtype=torch.bfloat16), lambda: torch.ones(2)),
    "a frame": (lambda: frame(1), lambda: frame(2)),
    "its columns": (lambda: frame(1), lambda: frame(1, "y")),
    "a column": (lambda: frame(1)["x"], lambda: frame(2)["x"]),
    "dates": (lambda: np.zeros(1, "M8[s]"), lambda: np.ones(1, "M8[s]")),
    "a list that holds itself": (lambda: cyclic(1), lambda: cyclic(2)),
    "which of two": (
        lambda: [one := SimpleNamespace(), two := SimpleNamespace(), one, two],
        lambda: [one := SimpleNamespace(), two := SimpleNamespace(), two, one],
    ),
}


@pytest.mark.parametrize("what", VALUES)
def test_a_global_is_hashed_by_its_value(what: str) -> None:
    names = []
    for of in (*VALUES[what], *VALUES[what]):
        torch.manual_seed(0)
        source = "def net(classes):\n    return VALUE\n"
        notebook = cell(source, 3, {"__name__": "__main__", "VALUE": of()})
        names.append(named(notebook["net"]))
    assert names[0] != names[1]
    assert names[:2] == names[2:]


def test_a_classes_attribute_is_hashed_by_its_value() -> None:
    source = f"{NET}    part = PART\n"
    names = set()
    for width in (8, 9):
        part = partial(nn.Linear, width)
        namespace = {"__name__": "__main__", "nn": nn, "WIDTH": 1, "PART": part}
        names.add(named(cell(source, 4, namespace)["Net"]))
    assert len(names) == 2


def test_what_counts_and_tells_the_time_is_not_hashed() -> None:
    import logging

    logger = logging.getLogger("of a test")
    source = "def net(classes):\n    LOG.info(SOME)\n"
    names = set()
    for level in (10, 20):
        logger.setLevel(level)
        some = {Config(level), Config(1)}  # in an order by their addresses
        notebook = cell(source, 5, {"__name__": "__main__", "LOG": logger, "SOME": some})
        names.add(named(notebook["net"]))
    assert len(names) == 1


@pytest.mark.parametrize("of", [np.asarray, torch.tensor])
def test_lists_of_arrays_stay_those_that_were_given(of: Callable[..., Any]) -> None:
    rows, given = [of([float(i), 0.0]) for i in range(4)], Given()
    name = str(given.value("dataset", (rows, [0, 1, 0, 1])))
    for row in rows:
        row += 7
    assert np.asarray(given.objects[name]()["inputs"]).tolist() == [[i, 0] for i in range(4)]


def test_tensors_are_datasets_whatever_their_type_and_gradient() -> None:
    rows, labels = torch.arange(8.0).reshape(4, 2), [0, 1, 0, 1]
    plain = Given().value("dataset", (rows, labels))
    half = rows.to(torch.bfloat16)
    graph = (rows.clone().requires_grad_() * 1, [*half])
    for other in (rows.clone().requires_grad_(), half, graph[0], [*graph[0]], graph[1]):
        assert Given().value("dataset", (other, labels)) == plain
    with pytest.raises(UserError, match="dataset: inputs cannot be made an array: ") as caught:
        Given().value("dataset", (rows.to_sparse(), labels))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_prediction_takes_tensors_with_gradients_and_refuses_ragged_lists(tmp_path: Path) -> None:
    run = pfedlora_flwr.run(dataset=(ROWS, LABELS), output=tmp_path / "run", **SMALL)
    rows = torch.from_numpy(ROWS[:4])
    graph, wanted = rows.clone().requires_grad_() * 1, run.predict(0, ROWS[:4])
    for given in (graph, [*graph], ROWS[:4].tolist()):
        assert np.array_equal(run.predict(0, given), wanted)
    assert run.predict(0, rows.to(torch.bfloat16)).shape == (4, 3)
    given = run.evaluate(0, (graph, LABELS[:4]))
    assert cast("dict[str, Any]", given)["samples"] == 4
    with pytest.raises(UserError, match="inputs: its rows have 1 to 2 numbers") as caught:
        run.predict(0, [[1.0, 2.0], [1.0]])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "found", "told"),
    [
        ("models", Small(3), "model is an instance of Small; give its class, or a function that"),
        ("method", 3, "method is 3; expected a name, a class or a function"),
        ("dataset", ROWS, "dataset is a ndarray; expected .* or .inputs, labels."),
        ("dataset", (ROWS,), "dataset is a tuple of 1"),
        ("dataset", {"inputs": ROWS}, "dataset is a dict of inputs; expected inputs, labels and"),
        ("models", eval("lambda classes: None"), "its source cannot be read; define it in a file"),
    ],
)
def test_what_is_no_such_object_is_refused_in_a_line(key: str, found: object, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        pfedlora_flwr.run(**{key: found})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_objects_run_and_are_taken_again_and_others_refused(tmp_path: Path) -> None:
    net = made(8)
    run = pfedlora_flwr.run(
        models=[net, "mlp5"], dataset=(ROWS, LABELS), output=tmp_path / "run", **SMALL
    )
    assert run.config["dataset"].endswith(":arrays")
    assert run.predict(0, ROWS[:2]).shape == (2, 3)
    [source] = (run.path / "source").glob("*.txt")
    assert "class Net(nn.Module)" in source.read_text()
    assert "width = 8" in source.read_text()
    loaded = pfedlora_flwr.load(run.path)
    assert isinstance(loaded, pfedlora_flwr.Run)
    assert loaded.result == run.result
    with pytest.raises(UserError, match=r"has no import path: give it again, .*models=…"):
        loaded.model(0)
    with pytest.raises(
        UserError, match="model Net is not the one that the run was made with: the hash"
    ):
        pfedlora_flwr.load(run.path, models=[made(9), "mlp5"])
    with pytest.raises(
        UserError, match=r"dataset arrays is not the one .* the hash of its bytes and columns was"
    ):
        loaded.resume(2, dataset=(ROWS + 1, LABELS))
    whole = pfedlora_flwr.load(run.path, models=[net, "mlp5"], dataset=(ROWS, LABELS))
    assert isinstance(whole, pfedlora_flwr.Run)
    assert isinstance(whole.model(0)(torch.zeros(1, 12, dtype=torch.float64)), torch.Tensor)
    assert whole.resume(2, progress=False).status == "completed"
    longer = SMALL | {"rounds": 2}
    straight = pfedlora_flwr.run(
        models=[net, "mlp5"], dataset=(ROWS, LABELS), output=tmp_path / "straight", **longer
    )
    assert whole.result["models_sha256"] == straight.result["models_sha256"]


@pytest.mark.slow
def test_objects_are_what_their_names_are(tmp_path: Path) -> None:
    """The same bits by class, by import path and from a file of arrays."""

    class Own(Alone):
        """A method of one's own."""

    def rows() -> tuple[Any, ...]:
        return ROWS, LABELS, ["low", "middle", "high"]

    np.savez(tmp_path / "rows.npz", inputs=ROWS, labels=LABELS)
    given = pfedlora_flwr.run(method=Own, dataset=rows, output=tmp_path / "given", **SMALL)
    by_name = pfedlora_flwr.run(
        method="standalone",
        dataset=f"npz:{tmp_path / 'rows.npz'}",
        output=tmp_path / "named",
        **SMALL,
    )
    assert given.result["models_sha256"] == by_name.result["models_sha256"]
    assert given.class_names(0) == ["low", "middle", "high"]
    compared = pfedlora_flwr.compare(
        methods=["standalone", Own], dataset=rows, output=tmp_path / "compared", **SMALL
    )
    assert len(set(compared.table()["accuracy"])) == 1
    base = {"dataset": rows} | {name: value for name, value in SMALL.items() if name != "progress"}
    conf = {"methods": ["standalone", Own], "seeds": [0], "base": base}
    mapped = pfedlora_flwr.compare(conf, output=tmp_path / "mapped", progress=False)
    assert mapped.table()["accuracy"].tolist() == compared.table()["accuracy"].tolist()[:2]
    for comparison in (compared, mapped):
        for done in comparison.runs():
            kept = [file.read_text() for file in (done.path / "source").iterdir()]
            assert any("def rows()" in text for text in kept)
            is_own = done.config["method"] != "standalone"
            assert any("class Own" in text for text in kept) == is_own


@pytest.mark.slow
def test_arrays_stay_those_that_were_given_and_inputs_are_looked_at(tmp_path: Path) -> None:
    rows = ROWS.copy()
    run = pfedlora_flwr.run(dataset=(rows, LABELS), output=tmp_path / "run", **SMALL)
    before = run.evaluate(0)
    rows[:] = 0
    assert run.evaluate(0) == before
    with pytest.raises(UserError, match=r"inputs\[1, 2\] is nan"):
        run.predict(0, np.where(np.arange(24).reshape(2, 12) == 14, np.nan, ROWS[:2]))
    with pytest.raises(UserError, match="client is '0'; allowed: 0 to 2"):
        run.predict("0", ROWS[:2])
    fixed = ROWS[:2].copy()
    fixed.flags.writeable = False
    with warnings.catch_warnings(action="error"):
        assert run.predict(np.int64(1), fixed).shape == (2, 3)


@pytest.mark.slow
def test_a_data_frame_goes_by_its_columns_names(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"x{i}" for i in range(12)])
    frame.assign(label=LABELS).to_csv(tmp_path / "rows.csv", index=False)
    run = pfedlora_flwr.run(
        dataset=f"csv:{tmp_path / 'rows.csv'}", output=tmp_path / "run", **SMALL
    )
    turned = run.predict(0, frame[frame.columns[::-1]])
    assert np.array_equal(turned, run.predict(0, frame))
    with pytest.raises(UserError, match="inputs has no column 'x3', which the model takes"):
        run.predict(0, frame.drop(columns="x3"))
    file = tmp_path / "other.csv"
    frame.assign(kind=LABELS).to_csv(file, index=False, sep=";", decimal=",")
    options = {"data_sep": "semicolon", "data_decimal": "comma"}
    assert np.array_equal(run.predict(0, file, **options), run.predict(0, tmp_path / "rows.csv"))
    mine = run.evaluate(0, f"csv:{file}", data_label_column="kind", **options)
    whole = run.evaluate(0, f"csv:{tmp_path / 'rows.csv'}")
    assert {**cast("dict[str, Any]", mine), "data": "", "seen": True} == {
        **cast("dict[str, Any]", whole),
        "data": "",
    }
    for inputs in (frame, ROWS):
        with pytest.raises(UserError, match=r"data.sep is not used for this data$"):
            run.predict(0, inputs, data_sep="tab")
    with pytest.raises(UserError, match=r"data-path is None; allowed: text"):
        run.evaluate(0, f"csv:{file}", data_path=None)
    with pytest.raises(UserError, match=r"data.label-column is not used .*: data.sep, data"):
        run.predict(0, file, data_label_column="kind")
    with pytest.raises(UserError, match=r"lr is as in the run; allowed: data.label-"):
        run.evaluate(0, f"csv:{file}", lr=1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"data-path is not used: dataset 'csv:.*' takes no"):
        run.evaluate(0, f"csv:{file}", data_path="x")
    with pytest.raises(UserError, match=r"data.sep is of a dataset: give DATA, too"):
        run.evaluate(0, data_sep="tab")
    rows, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    lines.write_text(frame[frame.columns[::-1]].to_json(orient="records", lines=True))
    np.testing.assert_allclose(run.predict(0, lines), run.predict(0, rows), atol=1e-6)
    lines.write_text('{"x0": 1}\n{"x0"')
    with pytest.raises(UserError, match=r"rows.jsonl: no JSON objects, one a line \(JSON"):
        run.predict(0, lines)
    # arrays of the same run go by place, and say so
    data = f"csv:{tmp_path / 'rows.csv'}", (frame[frame.columns[::-1]], LABELS), (ROWS, LABELS)
    found = [cast("dict[str, Any]", run.evaluate(0, one)) for one in data]
    assert len({one["accuracy"] for one in found}) == 1
    assert [one["by_place"] for one in found] == [False, False, True]


@pytest.mark.slow
def test_rows_from_the_standard_input_and_values_far_from_training(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(12)]
    table = "\n".join(",".join(map(str, [*row, y])) for row, y in zip(ROWS, LABELS, strict=True))
    (tmp_path / "rows.csv").write_text(",".join([*names, "label"]) + "\n" + table)
    place = tmp_path / "run"
    pfedlora_flwr.run(dataset=f"csv:{tmp_path / 'rows.csv'}", output=place, **SMALL)
    usual = dict.fromkeys(names, 0.5)
    told = "\n".join(map(json.dumps, (usual, usual | {"x3": 7100})))
    command = [sys.executable, "-m", "pfedlora_flwr.cli", "predict", place, "--client", "0", "-"]
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.count("row 2")) == (0, 1)
    assert "note: -, row 2: x3 is 7100, " in done.stderr
    assert done.stderr.count("row ") == 1
    # the server of docs/predict.md answers as the model does, and refuses a forgotten column
    run = pfedlora_flwr.load(place)
    model = run.export(0, tmp_path / "model.onnx", format="onnx")
    page = (ROOT / "docs" / "predict.md").read_text()
    [program] = re.findall(r"<!-- file: serve.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "serve.py").write_text(program)
    port = free_port()
    command = [sys.executable, tmp_path / "serve.py", model, str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            rows = [dict(zip(names, map(float, row), strict=True)) for row in ROWS[:9]]
            status, classes = asked(port, rows)
            said = cast("pfedlora_flwr.Run", run).predict(0, ROWS[:9]).argmax(1)
            assert (status, classes) == (200, [str(label) for label in said])
            assert asked(port, [{**rows[0], "x3": None}])[0] == 400
            assert asked(port, [dict(list(rows[0].items())[1:])]) == (400, "KeyError: 'x0'")
        finally:
            server.terminate()


def asked(port: int, rows: object) -> tuple[int, Any]:
    """What a server answers to rows, once it is there."""
    for _ in range(120):
        with suppress(ConnectionRefusedError):
            line = HTTPConnection("127.0.0.1", port, timeout=30)
            line.request("POST", "/", json.dumps(rows))
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        time.sleep(0.5)
    raise AssertionError("no server")


@pytest.mark.slow
def test_columns_names_last_from_training_to_adapting(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"x{i}" for i in range(12)])
    turned = frame[frame.columns[::-1]]
    turned.assign(label=LABELS).to_csv(tmp_path / "turned.csv", index=False)
    named, bare = (
        pfedlora_flwr.run(dataset=(given, LABELS), output=tmp_path / name, **SMALL)
        for name, given in (("named", frame), ("bare", ROWS))
    )
    assert named.result["models_sha256"] == bare.result["models_sha256"]
    assert np.array_equal(named.predict(0, turned), named.predict(0, frame))
    one, other = (
        cast("dict[str, Any]", named.evaluate(0, (given, LABELS))) for given in (turned, frame)
    )
    assert {**one, "data": "", "seen": True} == {**other, "data": ""}
    with pytest.raises(UserError, match="arrays' has no column 'x3', which the model takes"):
        named.evaluate(0, (frame.drop(columns="x3"), LABELS))
    with pytest.raises(UserError, match=r"does not know its columns by name.*give an array"):
        bare.predict(0, frame)
    csv = f"csv:{tmp_path / 'turned.csv'}"
    with pytest.raises(UserError, match=r"does not know its own by name.*give arrays"):
        bare.evaluate(0, csv)
    with pytest.raises(UserError, match=r"names its columns .*the run's data had no names"):
        pfedlora_flwr.adapt(bare, tmp_path / "a", dataset=csv)
    with pytest.raises(UserError, match="does not name its columns, and the run's were x0"):
        pfedlora_flwr.adapt(named, tmp_path / "a", dataset=(ROWS, LABELS))
    adapted = [
        pfedlora_flwr.adapt(run, tmp_path / name, dataset=(given, LABELS)).result["accuracy"]
        for run, name, given in ((named, "b", frame), (bare, "c", ROWS))
    ]
    assert adapted[0] == adapted[1]
    mixed, twice = (frame.set_axis([name, *frame.columns[1:]], axis=1) for name in (3, "x3"))
    numbered = pandas.DataFrame(np.asarray(turned))
    for other, told in ((mixed, "a column 3; expected texts"), (twice, "column 'x3' twice")):
        with pytest.raises(UserError, match=f"dataset has {told}"):
            run_name(other)
        with pytest.raises(UserError, match=f"inputs has {told}"):
            named.predict(0, other)
    with pytest.raises(UserError, match="inputs has no column 'x0', which the model takes"):
        named.predict(0, numbered)
    with pytest.raises(UserError, match="dataset: inputs cannot be made an array: setting an"):
        Given().value("dataset", ([[1, 2], [3]], LABELS))
    # numbers are no names, as in the frame of an array
    assert run_name(pandas.DataFrame(ROWS)) == run_name(ROWS) != run_name(frame)


def run_name(inputs: Any) -> str:
    return str(Given().value("dataset", (inputs, LABELS)))


@pytest.mark.slow
def test_a_run_that_failed_says_which_objects_it_needs_to_go_on(tmp_path: Path) -> None:
    class Raises(Alone):
        """Nobody can train."""

        def local_update(self, *_: Any) -> Any:
            raise RuntimeError("the disk is full")

    place = tmp_path / "run"
    with pytest.raises(UserError) as told:
        pfedlora_flwr.run(method=Raises, dataset=(ROWS, LABELS), output=place, **SMALL)
    call = str(told.value).partition("to continue: ")[2]
    assert call == f"pfedlora_flwr.load({str(place)!r}, method=…, dataset=…).resume()"
    run = pfedlora_flwr.load(place, method=Raises, dataset=(ROWS, LABELS))
    assert isinstance(run, pfedlora_flwr.Run)
    with pytest.raises(UserError, match="the disk is full"):
        run.resume(progress=False)


@pytest.mark.slow
def test_a_file_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, inputs=ROWS, labels=LABELS)
    run = pfedlora_flwr.run(dataset=f"npz:{file}", output=tmp_path / "run", **SMALL)
    for rows in (len(ROWS), 9):
        np.savez(file, inputs=ROWS[:rows], labels=LABELS[:rows])
        found = run.evaluate(0, f"npz:{file}")
        assert isinstance(found, dict)
        assert found["samples"] == rows
    for name in ("rows", "other"):  # one whose constants were there already, and one afresh
        np.savez(tmp_path / f"{name}.npz", inputs=3 * ROWS + 1, labels=LABELS)
    again, afresh = (
        pfedlora_flwr.run(dataset=f"npz:{tmp_path}/{n}.npz", output=tmp_path / f"by-{n}", **SMALL)
        for n in ("rows", "other")
    )
    assert again.result["models_sha256"] == afresh.result["models_sha256"]


def test_what_other_processes_cannot_import_needs_this_one(tmp_path: Path) -> None:
    calls: tuple[Callable[..., object], ...] = (pfedlora_flwr.run, pfedlora_flwr.compare)
    for call in calls:
        more = {"methods": ["standalone"]} if call is pfedlora_flwr.compare else {}
        with pytest.raises(
            UserError, match="Net has no import path by which the processes of engine"
        ):
            call(models=made(8), engine="flower", output=tmp_path / "run", **SMALL, **more)


class Wayward:
    """It raises what no attribute lookup should."""

    def __init__(self, known: dict[str, int]) -> None:
        self.__dict__["known"] = known

    def __getattr__(self, name: str) -> int:
        return self.known[name]


class Slotted:
    __slots__ = "value"

    def __init__(self, value: int) -> None:
        self.value = value


def test_an_instance_that_cannot_be_looked_at_goes_by_its_type() -> None:
    def of(value: Any) -> str:
        def net(classes: int) -> Any:
            return value

        return named(net)

    assert of(Wayward({"a": 1})) == of(Wayward({"a": 1}))
    unread = SimpleNamespace(made=eval("lambda x: x"))
    assert of(unread) == of(unread)
    assert of(Slotted(1)) == of(Slotted(1))
    assert of(Slotted(1)) != of(Slotted(2))
