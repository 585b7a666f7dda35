"""Two people walk through the product with data of their own: their commands as they typed them,
from README and documents alone, and what each has to say."""

from __future__ import annotations

import csv
import datetime
import random
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import pfedlora_flwr as pf
from tests.conftest import Call

pytestmark = pytest.mark.slow
Walk = Callable[..., str]
Visits = list[dict[str, Any]]


@pytest.fixture
def walk(pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """`walk("run …", "what it says", …)` types a command; its exit code is 0, 1 if the first is
    "failed", or 2 with one line if it is "error". All that it said."""
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))

    def typed(command: str, *expected: str) -> str:
        code, out, err = pfedlora(*shlex.split(command))
        said = out + err
        assert "Traceback" not in said
        if expected and expected[0] == "failed":
            assert code == 1, said
        elif expected and expected[0] == "error":
            lines = [line for line in err.splitlines() if not line.startswith("local engine")]
            assert (code, len(lines)) == (2, 1), said
        else:
            assert code == 0, said
        flat = " ".join(said.split())
        for words in expected:
            assert words in flat, f"{command}\n{words}\nis not in\n{said}"
        return said

    return typed


# The engineer of four hospitals


CONF = """
dataset: csv:visits.csv
data.label-column: outcome
data.client-column: hospital
data.drop: los_days,admitted
data.missing: median
data.categories: one-hot
split.kind: groups
split.column: patient
partition.kind: natural
clients: 4
models: mlp1
method: fedavg
rounds: 2
batch-size: 16
"""


def visits() -> Visits:
    """Patients who come up to four times, to four hospitals; in a tenth a value was not measured,
    and the length of a stay tells how it ended."""
    drawn, rows = random.Random(7), list[dict[str, Any]]()
    for number, hospital in enumerate(("aachen", "bonn", "essen", "koeln")):
        for patient in range(40):
            sick = drawn.random() < 0.35 + 0.1 * number
            own = {
                "patient": 1000 * number + patient,
                "hospital": hospital,
                "age": drawn.randint(30, 90),
                "sex": drawn.choice("FM"),
                "outcome": "readmitted" if sick else "home",
            }
            for _ in range(drawn.randint(1, 4)):
                day = datetime.date(2026, 1, 1) + datetime.timedelta(days=drawn.randint(0, 300))
                sugar = "" if drawn.random() < 0.1 else round(drawn.gauss(7 if sick else 5.6), 2)
                stay = drawn.randint(3, 15) if sick else drawn.randint(1, 6)
                rows.append(own | {"admitted": day, "hba1c": sugar, "los_days": stay})
    drawn.shuffle(rows)
    return rows


def write(name: str, rows: Iterable[dict[str, Any]], *columns: str) -> None:
    rows = list(rows)
    with Path(name).open("w", newline="") as file:
        table = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


@pytest.mark.usefixtures("here", "no_figures")
def test_the_engineer_of_four_hospitals(walk: Walk) -> None:
    rows = visits()
    write("visits.csv", rows)
    Path("conf.yaml").write_text(CONF)
    table = (
        "run --engine local --dry-run -o dataset=csv:visits.csv -o partition.kind=natural"
        " -o data.client-column=hospital -o clients=4 -o batch-size=16"
    )
    walk(table, "error", "it has no column 'label', but patient, hospital")
    table += " -o data.label-column=outcome"
    walk(table, "error", "column 'hba1c' has no value", "remove them, or let data.missing=mean do")
    table += " -o data.missing=median"
    walk(f"{table} -o data.features=age,sexx", "error", "it has no column 'sexx'", "data.features")
    walk(f"{table} -o data.features=age,sex", "error", "by hand or by data.categories=one-hot")
    walk(f"{table} -o data.missing=zero", "error", "allowed: refuse | mean | median")
    walk(
        table,
        "sex (string), admitted (date32[day]); data.categories=one-hot keeps categories",
        "each value has one label, as that of another target: patient; what is no feature is left",
        "missing, filled by the median of training: hba1c",
        "features: patient, age, hba1c, los_days",
    )
    walk("run conf.yaml --dry-run --engine local", "features: age, sex=F, sex=M, hba1c a round:")
    walk("run conf.yaml --engine local -o output=april", "everything is in april")

    write("odd.csv", [rows[0] | {"age": 7100}], "outcome", "hba1c", "sex", "note", "age")
    said = walk("predict april --client 0 odd.csv", "row 1: age is 7100,", "odd.csv, row 1: ")
    assert said.count("odd.csv, row 1: ") == 2, "the note, and the answer"
    write("ageless.csv", rows[:3], "sex", "hba1c")
    said = walk("predict april --client 0 ageless.csv", "error", "it has no column 'age'")
    assert said.endswith("mend its header\n"), "no key gives a model another column"

    new = [row | {"age": row["age"] + 1, "admitted": "2026-11-09"} for row in rows[:60]]
    write("may.csv", rows + new)
    more = "--engine local -o dataset=csv:may.csv -o rounds=3"
    walk(f"run conf.yaml {more} -o output=april", "error", "exists; continue it with --resume")
    walk(f"run --resume {more} -o output=april", "error", "holds a different Experiment (dataset")
    walk(
        f"run conf.yaml {more} -o output=may -o start-from=april",
        "its shared state, and each client's own model; rounds 3 to 3 follow",
    )

    spelt = {"home": "Home", "readmitted": "back"}
    late = [r | {"hospital": "trier", "outcome": spelt[r["outcome"]]} for r in rows[:100]]
    write("trier.csv", late)
    Path("map.csv").write_text("label,class\nHome,home\nback,readmitted\n")
    walk(
        "evaluate may --client 0 csv:trier.csv",
        "error",
        "lacks (Home, back)",
        "data.class-map=FILE",
    )
    site = "adapt may -o dataset=csv:trier.csv --output trier"
    walk(
        site,
        "error",
        "has the classes Home, back, and the shared state home, readmitted",
        "data.class-map",
    )
    walk(f"{site} --client 0", "error", "client 0 was in the run; leave client out")
    walk(f"{site} -o data.class-map=map.csv", "client 4: mlp1,", "gain: ")
    walk("evaluate may --client 0 csv:trier.csv -o data.class-map=map.csv", "(over 100 samples)")
    walk("run may --resume -o clients-left=3", "error", "a run's directory: to go on with it")
    walk("report may", "FedAvg reaches", "the report is may/report/report.html")
    page = Path("may/report/report.html").read_text()
    assert "What was sent, and who could see it" in page


# The researcher with a method of their own


CODE = '''
"""A method with momentum on the server, and data of one's own."""

import numpy as np
from sklearn.datasets import load_wine

from pfedlora_flwr.methods.fedavg import FedAvg


class Momentum(FedAvg):
    """The step of each round keeps 0.9 of the last one's."""

    def state_init(self, seed):
        shared = super().state_init(seed)
        return shared | {f"m.{n}": t.new_zeros(t.shape) for n, t in shared.items()}

    def download(self, state, client, round):
        return {n: t for n, t in state.items() if not n.startswith("m.")}

    def aggregate(self, uploads, state, round):
        mean = super().aggregate(uploads, self.download(state, 0, round), round)
        step = {n: 0.9 * state[f"m.{n}"] + t - state[n] for n, t in mean.items()}
        new = {n: state[n] + t for n, t in step.items()}
        return new | {f"m.{n}": t for n, t in step.items()}


class Mixed(Momentum):
    """Returns each tensor beside its momentum, and not in the order of its state."""

    def aggregate(self, uploads, state, round):
        return dict(sorted(super().aggregate(uploads, state, round).items()))


def wine():
    return load_wine(return_X_y=True)


class Wine:
    pass


def labels():
    return load_wine().target


def alcohol():
    data = load_wine().data
    return data[:, 1:], data[:, 0]


def several():
    data = load_wine().data
    return data, (data[:, :3] > np.median(data[:, :3], 0)).astype(int)
'''
STUDY = """
base: {dataset: "mine:wine", clients: 3, models: mlp1, rounds: 1, batch-size: 16, split.folds: 2}
methods: [standalone, "mine:Momentum"]
seeds: [0, 1]
"""


@pytest.mark.usefixtures("here", "no_figures")
def test_the_researcher_with_a_method_of_their_own(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another test in this process
    Path("mine.py").write_text(CODE)
    one = "run --engine local -o clients=3 -o rounds=1 -o models=mlp1 -o output=one"
    for name, words in {
        "Wine": "it returned Wine, expected (inputs, labels), (inputs, labels, class names), or",
        "labels": "it returned ndarray, expected (inputs, labels), (inputs, labels, class names)",
        "alcohol": "methods here classify, and predict no numbers (regression)",
        "several": "a row has one class here, not several (multi-label)",
    }.items():
        walk(f"{one} -o dataset=mine:{name}", "error", words)
    wine = f"{one} -o dataset=mine:wine"
    walk(f"{wine} -o clients=30", "error", "clients is 30; mine:wine has 178 rows", "allowed ≤ 17")
    walk(f"{wine} -o method=mine:Momemtum", "error", "module 'mine' has no 'Momemtum'")
    walk(f"{wine} -o split.kind=groups", "error", "split.column")
    walk(
        f"{wine} -o method=mine:Mixed --overwrite",
        "failed",
        "a state of another layout: its tensors are in another order: fc1.bias, expected first",
    )
    walk(f"{wine} -o method=mine:Momentum --overwrite", "everything is in one")

    Path("study.yaml").write_text(STUDY)
    walk("compare study.yaml --dry-run", "0 of 8 runs are done, 8 are left")
    walk(
        "compare study.yaml --engine local",
        "8 of 8: ",
        "With fewer than 3 seeds in common nothing is claimed",
    )
    study = pf.load("runs/study")
    assert dict(study.table()["seeds"]) == {0: 2, 1: 2}, "folds are no further seeds"
