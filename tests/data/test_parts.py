"""A row of a site keeps its part for life."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.parts import Parts
from pfedlora_flwr.data.split import Split, stratified
from pfedlora_flwr.errors import UserError


def drawn(file: Path, hashes: list[int], labels: list[int], client: int = 0) -> Split:
    """A month's split of a site's rows."""
    parts, own = Parts(file), np.array(hashes, np.uint64)
    known = parts.known(own)
    split = stratified(np.array(labels), np.arange(len(own)), 3, client, known)
    parts.keep(own, split)
    return split


ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=10, max_size=60)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(months=st.lists(ROWS, min_size=2, max_size=4), order=st.randoms(use_true_random=False))
def test_a_row_keeps_its_part_through_renewals(
    months: list[list[tuple[int, int]]],
    order: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file, rows = tmp_path_factory.mktemp("site") / "parts" / "seed-3.npz", list[tuple[int, int]]()
    before: dict[int, list[int]] = {}
    for month, new in enumerate(months):
        rows = [*rows, *new] if month < 2 else [*rows[5:], *new]  # some are removed, too
        order.shuffle(rows)  # type: ignore[attr-defined]
        split = drawn(file, [h for h, _ in rows], [h % 3 for h, _ in rows], client=month)
        of: dict[int, list[int]] = {}
        for part, indices in enumerate((split.train, split.validation, split.test)):
            for i in indices:
                of.setdefault(rows[i][0], []).append(part)
        assert sum(map(len, of.values())) == len(rows)
        for row, parts in before.items():
            kept = sorted(of.get(row, []))
            more = len(kept) - len(parts)
            if more >= 0 and month < 2:
                assert all(kept.count(p) >= parts.count(p) for p in set(parts))
                # a new row that equals an old one goes where that one is
                assert set(kept) == set(parts)
        before = of
        again = drawn(file, [h for h, _ in rows], [h % 3 for h, _ in rows], client=month)
        for name in ("train", "validation", "test"):
            assert np.array_equal(getattr(again, name), getattr(split, name)), "the same bits"


def test_new_rows_are_divided_as_all_are(tmp_path: Path) -> None:
    first = drawn(tmp_path / "p.npz", [*range(50)], [0] * 50)
    assert [len(first.train), len(first.validation), len(first.test)] == [40, 5, 5]
    fresh = stratified(np.zeros(50, int), np.arange(50), 3, 0)
    assert np.array_equal(first.train, fresh.train), "without a memory nothing changes"
    grown = drawn(tmp_path / "p.npz", [*range(75)], [0] * 75)
    assert [len(grown.train), len(grown.validation), len(grown.test)] == [61, 7, 7]
    assert {*first.train} <= {*grown.train}
    assert {*first.test} <= {*grown.test}


def test_a_nodes_grown_table_keeps_its_test_rows_and_damage_is_a_line(tmp_path: Path) -> None:
    values, table = np.random.default_rng(0).normal(size=(90, 2)), tmp_path / "t.csv"
    keys = {"dataset": "digits", "classes": 2, "input-shape": "2", "clients": 2}
    e, where = from_flat(keys), {"dataset": f"csv:{table}", "state-path": str(tmp_path / "state")}
    seen: list[set[tuple[float, ...]]] = []
    for rows in (values[:60], values[20:][::-1]):
        lines = "".join(f"{a!r},{b!r},{'pq'[i % 2]}\n" for i, (a, b) in enumerate(rows.tolist()))
        table.write_text(f"a,b,label\n{lines}")
        forget()
        Site.find(e, -1, where)  # a look, before the node has its number
        site = Site.find(e, 1, where)
        seen.append({tuple(row) for row in site.dataset.inputs[site.split.train].tolist()})
        seen.append({tuple(row) for row in site.dataset.inputs[site.split.test].tolist()})
    train, test, later_train, later_test = seen
    assert not train & later_test
    assert not test & later_train
    assert len(later_test) == 7
    [file] = (tmp_path / "state" / "parts").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    forget()
    with pytest.raises(UserError, match=r"seed-0.npz is damaged, by which rows .*: restore it"):
        Site.find(e, 1, where)
