"""A trained client's model on labelled images: on its own test part what the run counted, elsewhere
classes matched by their names."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.local import forget, site_settings
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.ops.evaluate import _labels
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Call, Done, run_locally

pytestmark = pytest.mark.slow


def test_every_clients_own_test_part_gives_the_figures_of_the_run(
    trained_run: Done, pfedlora: Any
) -> None:
    code, out, err = pfedlora("evaluate", str(trained_run.output), "--all-clients", "--json")
    assert (code, err) == (0, "")
    setup = DataSetup(RunDirectory(trained_run.output).experiment())
    dataset, partition = setup.dataset, setup.partition
    for found, (client, row) in zip(
        json.loads(out), trained_run.result["per_client"].items(), strict=True
    ):
        assert (found["client"], found["samples"], found["accuracy"]) == (
            int(client),
            row["test"],
            row["accuracy"],
        )
        test = partition.clients[found["client"]].test
        true = dataset.labels[test]
        said = (
            load_trained(trained_run.output, found["client"])
            .logits(dataset.inputs[test])
            .argmax(1)
            .numpy()
        )
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(true, said))
        assert found["macro_f1"] == pytest.approx(
            f1_score(true, said, labels=np.unique(true), average="macro")
        )
        recalls = {
            str(c): (int((true == c).sum()), float((said[true == c] == c).mean()))
            for c in np.unique(true)
        }
        assert {c["name"]: (c["samples"], c["recall"]) for c in found["classes"]} == recalls


def test_as_tables(trained_run: Done, pfedlora: Any) -> None:
    row = trained_run.result["per_client"]["1"]
    code, out, _ = pfedlora("evaluate", str(trained_run.output), "--client", "1")
    assert code == 0
    assert out.startswith("client 1 on its own test part\n")
    assert f"accuracy {row['accuracy']:.4f}, balanced accuracy 0." in out
    code, out, _ = pfedlora("evaluate", str(trained_run.output), "--all-clients")
    assert code == 0
    assert f"accuracy {trained_run.result['accuracy']['final']:.4f}, " in out
    assert "(unweighted means over the clients)" in out


def test_classes_are_matched_by_name(trained_run: Done, pfedlora: Any, tmp_path: Path) -> None:
    digits, run = datasets.load("digits"), str(trained_run.output)
    code, out, err = pfedlora("evaluate", run, "--client", "0", "digits", "--json")
    assert code == 0
    assert (
        err
        == "note: digits holds samples that the models were trained on; without DATA each client's"
        " own test part is taken\n"
    )
    plain = json.loads(out)
    assert plain["samples"] == 1797
    turned = {
        "images": digits.inputs,
        "labels": 9 - np.asarray(digits.labels),
        "class_names": list("9876543210"),
    }
    np.savez(tmp_path / "turned.npz", **turned)
    code, out, err = pfedlora("evaluate", run, "--client", "0", "npz:turned.npz", "--json")
    assert code == 0
    assert err.startswith("note: npz:turned.npz holds samples that the models were trained on;")
    assert json.loads(out) == plain | {"data": "npz:turned.npz"}
    some = np.isin(digits.labels, (3, 7))
    np.savez(
        tmp_path / "some.npz",
        images=digits.inputs[some],
        labels=np.asarray(digits.labels)[some] // 4,
        class_names=["3", "7"],
    )
    _, out, _ = pfedlora("evaluate", run, "--client", "0", "npz:some.npz", "--json")
    assert json.loads(out)["classes"] == [row for row in plain["classes"] if row["name"] in "37"]
    one = np.asarray(digits.labels) == 0
    np.savez(tmp_path / "one.npz", images=digits.inputs[one], labels=np.asarray(digits.labels)[one])
    _, out, _ = pfedlora("evaluate", run, "--client", "0", "npz:one.npz", "--json")
    assert json.loads(out)["classes"] == plain["classes"][:1], "one class will do"


def test_samples_that_were_trained_on_are_known_wherever_they_lie(
    tmp_path: Path, pfedlora: Call
) -> None:
    head, *rows = ["x,y,label", *(f"{i},{i * i % 7},{'abc'[i % 3]}" for i in range(60))]

    def table(name: str, lines: list[str]) -> str:
        (tmp_path / name).write_text("\n".join([head, *lines, ""]))
        return f"csv:{name}"

    keys = {"method": "standalone", "clients": 2, "rounds": 1, "partition.kind": "iid"}
    data = f"csv:{tmp_path}/{table('t.csv', rows)[4:]}"
    assert run_locally(tmp_path / "run", keys | {"dataset": data}).code == 0

    def seen(asked: str) -> tuple[bool | None, str]:
        forget()
        code, out, err = pfedlora("evaluate", "run", "--all-clients", asked, "--json")
        assert code == 0, err
        [found] = {one["seen"] for one in json.loads(out)}
        return found, err

    (tmp_path / "link.csv").symlink_to("t.csv")
    few, other = table("few.csv", rows[:30:3]), table("other.csv", ["-1,3,a", "-2,4,b"])
    for asked in (data, "csv:t.csv", "csv:link.csv", few):
        assert seen(asked)[0] is True, asked
    assert seen(other) == (False, "")
    site = DataSetup(RunDirectory(tmp_path / "run").experiment()).partition
    tested = [rows[i] for split in site.clients for i in split.test]
    assert seen(table("tested.csv", tested)) == (False, "")
    table("t.csv", ["-1,3,a", "-2,4,b", "-3,5,c"] * 20)
    for asked in (data, few):  # another file under the run's name, and a part of what there was
        found, err = seen(asked)
        assert found is None
        assert f"whether {asked} holds samples that the models were trained on is not known" in err


def test_classes_without_names_are_matched_by_number_and_others_are_refused(
    trained_run: Done, pfedlora: Any, tmp_path: Path
) -> None:
    run, images = str(trained_run.output), np.zeros((4, 32, 32, 3), np.uint8)
    np.savez(
        tmp_path / "animals.npz",
        images=images,
        labels=[0, 1, 2, 0],
        class_names=["cat", "dog", "eel"],
    )
    np.savez(tmp_path / "many.npz", images=images, labels=[0, 1, 2, 12])
    code, out, err = pfedlora("evaluate", run, "--client", "0", "npz:animals.npz", "--json")
    assert (code, err) == (
        0,
        (
            "note: classes were matched by number: those of the model or of npz:animals.npz have no"
            " names\n"
        ),
    )
    assert [row["name"] for row in json.loads(out)["classes"]] == ["0", "1", "2"]
    named = tmp_path / "named"
    shutil.copytree(run, named)
    about = named / "clients" / "0" / "about.json"
    numbers = ("-1", "0", "1")
    column = Dataset("csv:t.csv", np.zeros((2, 3)), np.array([0, 1]), ("0", "1"))
    assert _labels(numbers, column)[0].tolist() == [1, 2], "a column's values are names"
    assert _labels(numbers, replace(column, name="npz:t.npz"))[0].tolist() == [0, 1]
    about.write_text(
        json.dumps(json.loads(about.read_text()) | {"class_names": list("1234567890")})
    )
    np.savez(tmp_path / "two.npz", images=images, labels=[1, 2, 1, 2])
    _, out, err = pfedlora("evaluate", str(named), "--client", "0", "npz:two.npz", "--json")
    assert err.startswith("note: classes were matched by number")
    assert [row["name"] for row in json.loads(out)["classes"]] == ["2", "3"], "1 is the second"
    about.write_text(
        json.dumps(
            json.loads(about.read_text()) | {"class_names": [f"{i} o'clock" for i in range(10)]}
        )
    )
    for place, data, expected in (
        (run, "npz:many.npz", "npz:many.npz has labels up to 12, and the model 10 classes"),
        (
            named,
            "npz:animals.npz",
            (
                "npz:animals.npz has classes that the model lacks (cat, dog, eel); the model's: 0"
                " o'clock, "
            ),
        ),
        (run, "pictures", "dataset is 'pictures'; allowed: digits"),
        (run, "folder:nowhere", "does not exist"),
    ):
        code, out, err = pfedlora("evaluate", str(place), "--client", "0", data)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err


def test_data_that_is_not_what_the_client_had_is_refused(
    trained_run: Done, pfedlora: Any, tmp_path: Path
) -> None:
    digits, node = datasets.load("digits"), tmp_path / "node" / "0"
    shutil.copytree(trained_run.output / "clients" / "0", node)
    code, out, _ = pfedlora("evaluate", "node", "--client", "0", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == trained_run.result["per_client"]["0"]["accuracy"]
    np.savez(tmp_path / "own.npz", images=digits.inputs[:300], labels=digits.labels[:300])
    about = json.loads((node / "about.json").read_text())
    own = about | {
        "partition": "own",
        "site": site_settings({"dataset": "npz:own.npz", "state-path": "x"}),
    }
    assert own["site"] == {"dataset": f"npz:{tmp_path}/own.npz"}
    for changed, expected in (
        (
            about | {"partition": "another"},
            "the data of digits is not what client 0 was trained on; restore it, or give DATA",
        ),
        (
            own,
            f"the data of npz:{tmp_path}/own.npz is not what client 0 was trained on; restore it,"
            " or give DATA",
        ),
    ):
        (node / "about.json").write_text(json.dumps(changed))
        assert pfedlora("evaluate", "node", "--client", "0") == (2, "", f"error: {expected}\n")


def test_the_rows_of_a_clients_test_part_are_told(trained_run: Done, pfedlora: Call) -> None:
    run = RunDirectory(trained_run.output)
    partition = DataSetup(run.experiment()).partition
    code, out, _ = pfedlora("evaluate", str(run.path), "--all-clients", "--rows", "--json")
    assert code == 0
    for found, split in zip(json.loads(out), partition.clients, strict=True):
        assert [row - 1 for row in found["rows"]] == sorted(split.test.tolist())
    _, out, _ = pfedlora("evaluate", str(run.path), "--client", "1", "--rows")
    assert "test rows of client 1: " in out
    code, _, err = pfedlora("evaluate", str(run.path), "--client", "1", "digits", "--rows")
    assert (code, err) == (
        2,
        "error: --rows lists the client's own test part: leave DATA out\n",
    )
