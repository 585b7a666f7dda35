"""What divides a client's samples: chance, groups, time, or the data itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.datasets import Dataset, load
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.partition import make_partition
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.data.split import Split, divided
from pfedlora_flwr.errors import UserError

Drawn = tuple[Dataset, list[Split]]


def data(labels: list[int], split: Any, *, inputs: Any = None) -> Dataset:
    n = len(labels)
    values = np.arange(2.0 * n).reshape(n, 2) if inputs is None else np.asarray(inputs)
    names = tuple(str(c) for c in range(3))
    owners = np.arange(n) % 3
    return Dataset(
        "csv:t.csv", values, np.array(labels), names, owners=owners, split=np.array(split)
    )


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=40, max_size=120),
    kind=st.sampled_from(["iid", "dirichlet", "natural"]),
    months=st.booleans(),
    seed=st.integers(0, 3),
)
def test_no_group_is_on_both_sides(
    rows: list[tuple[int, int]], kind: str, months: bool, seed: int
) -> None:
    """For all clients together, and when rows are added to a group."""
    keys = {"split.kind": "groups", "split.column": "who", "partition.kind": kind, "clients": 3}
    e = from_flat(keys | {"seed": seed, "partition.alpha": 5.0, "dataset": "csv:t.csv"})
    labels, groups = map(list, zip(*rows, strict=True))
    known = None
    try:
        if months:
            part = np.full(len(rows), -1)
            half = len(rows) // 2
            first = make_partition(e, data(labels[:half], groups[:half]))
            for split in first.clients:
                for of, own in enumerate(split.parts):
                    part[own] = of
            known = part
        made = make_partition(e, data(labels, groups), known)
    except UserError:
        return
    where: dict[int, set[int]] = {}
    for split in made.clients:
        for of, own in enumerate(split.parts):
            for row in own:
                where.setdefault(groups[row], set()).add(of)
                assert known is None or known[row] in (-1, of)
    if kind != "natural" or months is False:
        each = [
            {(g, of) for of, own in enumerate(s.parts) for g in np.array(groups)[own]}
            for s in made.clients
        ]
        assert all(len({g for g, _ in one}) == len(one) for one in each)
    shared = kind != "natural" or len({(g, i % 3) for i, g in enumerate(groups)}) > len({*groups})
    assert not shared or all(len(parts) == 1 for parts in where.values())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.integers(0, 1000), min_size=20, max_size=80),
    later=st.lists(st.integers(1000, 2000), min_size=20, max_size=40),
)
def test_the_last_ones_are_for_tests_and_later_rows_are_divided_anew(
    times: list[int], later: list[int]
) -> None:
    e = from_flat({"split.kind": "time", "split.column": "t", "clients": 1})
    own = np.arange(len(times))
    first = divided(e, data([0] * len(times), times), {0: own}, None)[0]
    at = np.array([*times, *later])
    assert at[first.train].max() <= at[first.validation].min() <= at[first.validation].max()
    assert at[first.validation].max() <= at[first.test].min()
    assert len(first.test) == len(times) - round(0.9 * len(times))
    known = np.full(len(at), -1)
    for of, rows in enumerate(first.parts):
        known[rows] = of
    second = divided(e, data([0] * len(at), at), {0: np.arange(len(at))}, known)[0]
    assert {*first.test} <= {*second.test}
    assert not {*first.train} & {*second.test}
    new = [rows[rows >= len(times)] for rows in second.parts]
    assert at[new[0]].max() <= at[new[2]].min()


def test_official_parts_are_dealt_by_each_clients_classes() -> None:
    part = ["train"] * 300 + ["test"] * 90
    labels = [i % 3 for i in range(390)]
    keys = {"split.kind": "given", "partition.kind": "dirichlet", "partition.alpha": 0.5}
    e = from_flat(keys | {"clients": 4, "dataset": "csv:t.csv"})
    made = make_partition(e, data(labels, part))
    every = np.concatenate([np.concatenate(s.parts) for s in made.clients])
    assert sorted(every) == [*range(390)]
    of = np.array(labels)
    for split in made.clients:
        assert max(split.train) < 300 <= min(split.test)
        mine = np.bincount(of[np.r_[split.train, split.validation]], minlength=3)
        tests = np.bincount(of[split.test], minlength=3)
        assert np.abs(tests - mine * 0.3).max() <= 1
        assert np.abs(len(split.validation) - (len(split.train) + len(split.validation)) / 9) < 1


ROWS = 60
GROUP = [f"p{i % 6}" for i in range(ROWS)]
WHEN = [f"2026-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(ROWS)]
PART = ["test" if i % 5 == 0 else "train" for i in range(ROWS)]


def csv(folder: Path) -> str:
    lines = [f"{i},{i % 7},{'ab'[i % 2]},{GROUP[i]},{WHEN[i]},{PART[i]}" for i in range(ROWS)]
    (folder / "t.csv").write_text("\n".join(["x,y,label,who,when,part", *lines]) + "\n")
    return f"csv:{folder / 't.csv'}"


def parquet(folder: Path) -> str:
    from pyarrow import csv as reader
    from pyarrow import parquet as writer

    csv(folder)
    writer.write_table(reader.read_csv(folder / "t.csv"), folder / "t.parquet")
    return f"parquet:{folder / 't.parquet'}"


def hub(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    csv(folder)
    datasets.Dataset.from_csv(str(folder / "t.csv"), cache_dir=str(folder / "c")).save_to_disk(
        str(folder / "hub")
    )
    return f"hf:{folder / 'hub'}"


def npz(folder: Path) -> str:
    inputs, when = np.arange(2.0 * ROWS).reshape(ROWS, 2), np.array(WHEN, "datetime64[D]")
    labels = np.arange(ROWS) % 2
    extra = {"who": GROUP, "when": when, "part": PART}
    np.savez(folder / "t.npz", inputs=inputs, labels=labels, **extra)
    return f"npz:{folder / 't.npz'}"


def function(folder: Path) -> str:
    (folder / "split_source.py").write_text(
        "import numpy as np\n"
        "def rows():\n"
        f"    return dict(inputs=np.arange({2.0 * ROWS}).reshape({ROWS}, 2),"
        f" labels=np.arange({ROWS}) % 2, NAME=VALUES)\n"
    )
    return "split_source:rows"


COLUMN = {"groups": "who", "time": "when", "given": "part"}


@pytest.mark.parametrize("kind", [*COLUMN])
@pytest.mark.parametrize("source", [csv, parquet, hub, npz, function])
def test_every_source_has_the_column_and_every_site_heeds_it(
    tmp_path: Path, source: Callable[[Path], str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a simulation, and as a site's own data, which keeps its parts."""
    name, column = source(tmp_path), COLUMN[kind]
    if source is function:
        held = {"groups": GROUP, "time": [*range(ROWS)], "given": PART}[kind]
        file = tmp_path / "split_source.py"
        file.write_text(file.read_text().replace("NAME", column).replace("VALUES", repr(held)))
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("split_source", None)
    keys = {"split.kind": kind, "split.column": column, "clients": 2, "partition.kind": "iid"}
    e = from_flat(keys | {"dataset": name, "classes": 2, "input-shape": "2"})
    forget()
    dataset = DataSetup(e).dataset
    assert dataset.shape == (2,), "the column is no feature"
    where = {"dataset": name, "state-path": str(tmp_path / "state")}
    site = Site.find(e, 1, where)
    for split in (site.split, *(() if kind == "groups" else DataSetup(e).partition.clients)):
        train, _, test = split.parts
        if kind == "groups":
            assert not {GROUP[i] for i in train} & {GROUP[i] for i in test}
        if kind == "time":
            assert max(train) < min(test)
        if kind == "given":
            assert {PART[i] for i in train} == {"train"}
            assert {PART[i] for i in test} == {"test"}
    forget()
    again = Site.find(e, 1, where)
    for name_, own in zip(("train", "test"), (site.split.train, site.split.test), strict=True):
        assert {*getattr(again.split, name_)} == {*own}


def test_folders_and_archives_have_official_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 10)):
        for label in "ab":
            (tmp_path / "f" / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 255, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "f" / part / label / f"{i}.png")
    arrays = {
        f"{part}{name}": values
        for part, n in (("", 80), ("validation_", 12), ("test_", 20))
        for name, values in (("inputs", rng.normal(size=(n, 3))), ("labels", np.arange(n) % 2))
    }
    np.savez(tmp_path / "t.npz", **arrays)
    for name, sizes in (
        (f"folder:{tmp_path}/f", (80, 0, 20)),
        (f"npz:{tmp_path}/t.npz", (80, 12, 20)),
    ):
        dataset = load(name)
        assert dataset.split is not None
        found = tuple(
            int((dataset.split == part).sum()) for part in ("train", "validation", "test")
        )
        assert found == sizes
        assert dataset.class_names in (("a", "b"), ("0", "1"))
        e = from_flat(
            {"dataset": name, "split.kind": "given", "clients": 2, "partition.kind": "iid"}
        )
        made = make_partition(e, dataset)
        assert sum(len(s.test) for s in made.clients) == 20
        merged = make_partition(e.replace(**{"split.kind": "random"}), dataset)
        assert sum(len(np.concatenate(s.parts)) for s in merged.clients) == len(dataset.labels)
    del arrays["test_labels"]
    np.savez(tmp_path / "t.npz", **arrays | {"test_labels": np.arange(5)})
    with pytest.raises(UserError, match="labels"):
        load(name, Reading(max_tokens=1))


@pytest.mark.parametrize(
    ("keys", "split", "told"),
    [
        ({"split.kind": "groups"}, None, "split.kind is groups, and split.column is auto: name"),
        ({"split.kind": "time", "split.column": "t"}, ["x"] * 60, "holds text; expected numbers"),
        ({"split.kind": "given"}, None, "has no parts: name their column by split.column"),
        ({"split.kind": "given", "split.column": "p"}, ["a"] * 60, "parts are called a; allowed"),
        ({"split.kind": "given", "split.column": "p"}, ["train"] * 60, "needs train and test"),
        (
            {"split.kind": "groups", "split.column": "g"},
            ["g"] * 60,
            "none for (training|validation|test)",
        ),
        ({"split.shares": "8,2"}, None, "split.shares is '?8,2'?; allowed: three integers"),
        ({"split.shares": "8,0,2"}, None, "'0' is none"),
    ],
    ids=str,
)
def test_what_cannot_divide_is_one_line(keys: dict[str, Any], split: Any, told: str) -> None:
    common = {"clients": 2, "partition.kind": "iid", "dataset": "csv:t.csv"}
    made = data([i % 3 for i in range(60)], split or 0)
    made = made if split else replace(made, split=None)
    with pytest.raises(UserError, match=told):
        make_partition(from_flat(common | keys), made)


def test_a_row_that_is_given_to_both_sides_is_refused() -> None:
    inputs = np.arange(120.0).reshape(60, 2)
    inputs[50] = inputs[3]
    part = ["train"] * 40 + ["test"] * 20
    e = from_flat(
        {"split.kind": "given", "clients": 2, "partition.kind": "iid", "dataset": "csv:t.csv"}
    )
    with pytest.raises(UserError, match=r"equal rows are in .* the test part \(1\)"):
        make_partition(e, data([i % 3 for i in range(60)], part, inputs=inputs))


def test_shares_are_those_that_are_named() -> None:
    e = from_flat({"split.shares": "6,2,2", "clients": 1, "partition.kind": "iid"})
    [split] = make_partition(e, load("digits")).clients
    assert [round(len(part) / 1797, 2) for part in split.parts] == [0.6, 0.2, 0.2]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=60, max_size=120),
    kind=st.sampled_from(["random", "groups"]),
    folds=st.integers(2, 4),
    clients=st.sampled_from(["iid", "natural"]),
)
def test_folds_test_each_sample_once_and_part_no_group(
    rows: list[tuple[int, int]], kind: str, folds: int, clients: str
) -> None:
    labels, groups = map(list, zip(*rows, strict=True))
    keys = {"split.kind": kind, "split.folds": folds, "dataset": "csv:t.csv", "clients": 3}
    keys |= {"partition.kind": clients} | ({"split.column": "who"} if kind == "groups" else {})
    seen = np.zeros(len(rows), int)
    for fold in range(folds):
        try:
            made = make_partition(from_flat(keys | {"split.fold": fold}), data(labels, groups))
        except UserError as error:
            if "and none for" in str(error):
                return
            raise
        sides = [
            np.concatenate(part) for part in zip(*(s.parts for s in made.clients), strict=True)
        ]
        assert len(np.unique(np.concatenate(sides))) == len(rows) == sum(map(len, sides))
        seen[sides[2]] += 1
        if kind == "groups":
            by = [{groups[i] for i in side} for side in sides]
            assert sum(map(len, by)) == len(set.union(*by))
    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"split.kind": "given"}, "split.folds is 3; allowed: auto, with split.kind=given"),
        ({"split.fold": 3}, "split.fold is 3; allowed: 0 to 2"),
        ({"start-from": "runs/old"}, "split.folds is 3; allowed: auto, with start-from"),
    ],
    ids=str,
)
def test_folds_that_cannot_be_are_one_line(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        from_flat({"split.folds": 3} | keys)
