"""`pfedlora decide`: the methods, the plan that fits the time, and a decision from end to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pfedlora_flwr
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops import decide as deciding
from pfedlora_flwr.ops.decide import decide, suited
from tests.conftest import Call


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(deciding, "cores", lambda: 2)


def table(rows: tuple[int, ...] = (30, 30, 30), name: str = "wards.csv", classes: int = 2) -> Path:
    """A table of three features whose label is the sign of their sum, by site."""
    draws = np.random.default_rng(0).normal(size=(sum(rows), 3)).round(3)
    sites = np.repeat([f"ward-{i}" for i in range(len(rows))], rows)
    lines = [
        f"{a},{b},{c},{'ill' if classes > 1 and a + b + c > 0 else 'well'},{site}"
        for (a, b, c), site in zip(draws, sites, strict=True)
    ]
    Path(name).write_text("\n".join(["a,b,c,state,ward", *lines]) + "\n")
    return Path(name)


@pytest.mark.parametrize(
    ("rows", "models", "train", "expected"),
    [
        ((10, 500, 900), ("mlp1",), "all", "fedavg fedprox fedrep ditto"),
        ((10, 499, 900), ("mlp1", "mlp1"), "all", "fedavg fedper fedproto"),
        ((900, 900), ("mlp1", "mlp2"), "all", "fedproto fd pfedlora fedmrl"),
        ((900, 900), ("a", "b"), "head", "fedssa pfedlora_plus lg_fedavg fedlda"),
        ((20, 20), ("hf:a",), "lora", "fedit fedsa_lora lg_fedavg"),
    ],
)
def test_methods_follow_from_rows_and_models(
    rows: tuple[int, ...], models: tuple[str, ...], train: str, expected: str
) -> None:
    assert suited(rows, models, train)[0] == tuple(expected.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "options", "seeds", "plan", "said"),
    [
        (60, {}, (), (5, 30), r"plan: 5 seeds of 30 rounds: 40 runs, about 87 s"),
        (1, {}, (), (5, 15), "15 rounds, reduced from 5 seeds of 30 rounds to save time: 40"),
        (0.01, {}, (), (2, 5), "to save time: 16 runs.*more than the 0.01 minutes asked for"),
        (0.01, {"rounds": 4}, (7,), (1, 4), "plan: 1 seed of 4 rounds: 8 runs.*more than the"),
    ],
)
def test_seeds_and_rounds_fit_the_minutes_and_what_was_cut_is_said(
    minutes: float,
    options: dict[str, object],
    seeds: tuple[int, ...],
    plan: tuple[int, int],
    said: str,
) -> None:
    path = table(name="our wards.csv")
    found = decide(path, sites="ward", label="state", minutes=minutes, seeds=seeds, options=options)
    assert "does the same: `pfedlora compare 'decide-our wards.yaml'`" in found.said[-1]
    assert (len(found.whole.seeds), found.whole.base["rounds"]) == plan
    assert re.search(said, "\n".join(found.said))


@pytest.mark.slow
def test_the_file_is_an_ordinary_comparison_that_compare_plans_alike(pfedlora: Call) -> None:
    words = (str(table((30, 30, 9))), "--sites", "ward", "--label", "state", "-o", "lr=0.01")
    assert pfedlora("decide", *words, "--dry-run")[0] == 0
    assert not Path("decide-wards.yaml").exists()
    code, out, _ = pfedlora("decide", *words, "--yaml")
    assert code == 0
    assert "`pfedlora compare decide-wards.yaml`" in out
    assert out.startswith("2 sites (1 with fewer than 10 rows left out), 2 classes")
    assert not Path("runs").exists()
    said = yaml.safe_load(Path("decide-wards.yaml").read_text())
    assert said["methods"][:2] == ["standalone", "pooled"]
    assert said["axes"] == {"sharing": ["mean", "none"]}
    assert (said["base"]["clients"], said["base"]["lr"]) == (2, 0.01)  # nine rows are too few
    planned = pfedlora("compare", "decide-wards.yaml", "--engine", "local", "--dry-run")[1]
    assert pfedlora("decide", *words, "--dry-run")[1].endswith(planned)
    code, _, err = pfedlora("decide", *words[:-1], "lr=0.1", "--yaml")
    assert code == 2
    assert "decide-wards.yaml is there with another comparison" in err
    code, _, err = pfedlora("decide", *words[:1], "--label", "state")
    assert "a table with --sites … and --label …, or --superlink … and --rows …, where" in err


@pytest.mark.parametrize(
    ("rows", "changed", "told"),
    [
        ((30, 30), {"sites": "wart"}, "sites is 'wart', and .*no such column; did you mean 'ward'"),
        ((30, 30), {"label": "x"}, "label is 'x', and .*its columns: a, b, c, state, ward"),
        ((30, 30), {"label": "ward"}, "sites and label are both 'ward'"),
        ((30, 30), {"label": "a"}, r"column 'a' holds double; .*predict no numbers"),
        ((30,), {}, "all rows have ward=ward-0; expected at least two sites"),
        ((9, 8, 30), {}, "of 3 sites 1 have the 10 rows of partition.min-samples, the largest 30"),
        ((30, 30), {"classes": 1}, "all labels are well; expected at least two classes"),
        ((30, 30), {"name": "wards.xlsx"}, r"wards.xlsx is no table; allowed: .*\.parquet"),
        ((30, 30), {"minutes": 0}, "minutes is 0; allowed: above 0"),
        ((30, 30), {"options": {"clients": 2}}, "clients is set by decide itself"),
        (
            (30, 30),
            {"options": {"verdict.score": "sensitivity@il"}},
            "no class is 'il'; the classes: ill, well",
        ),
    ],
)
def test_what_cannot_decide_gets_one_line(
    rows: tuple[int, ...], changed: dict[str, Any], told: str
) -> None:
    made = {key: changed.pop(key) for key in ("name", "classes") if key in changed}
    path = table(rows, **made)
    asked: dict[str, Any] = {"sites": "ward", "label": "state"}
    with pytest.raises(UserError, match=told) as raised:
        decide(path, **asked | changed)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=r"none.csv does not exist"):
        decide(Path("none.csv"), sites="ward", label="state")


@pytest.mark.slow
@pytest.mark.usefixtures("here", "no_figures")
def test_a_table_becomes_a_page_in_one_command(pfedlora: Call) -> None:
    """The API goes on with what the command has run."""
    words = (str(table()), "--sites", "ward", "--label", "state", "--seeds", "0")
    code, out, err = pfedlora("decide", *words, "-o", "rounds=2", "-o", "local-epochs=1")
    assert code == 0, err
    assert "report.html" in out
    page = Path("runs/decide-wards/report/report.html").read_text()
    assert all(word in page for word in ("Pooled", "FedProto", "ward-2"))
    found = pfedlora_flwr.decide(
        "wards.csv",
        sites="ward",
        label="state",
        seeds=[0],
        rounds=2,
        local_epochs=1,
        progress=False,
    )
    assert found.path == Path("runs/decide-wards").absolute()
