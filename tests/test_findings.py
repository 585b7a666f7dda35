"""The table of findings names tests that there are, and the pages the versions that are tested."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

COUNTS = {"A": 5, "B": 10, "C": 6, "D": 9, "E": 3}
TABLE = ROOT / "tests" / "findings.md"
ROWS = [
    line.split(" | ") for line in TABLE.read_text().splitlines() if re.match(r"\| [A-E]-", line)
]


def test_every_finding_has_a_line() -> None:
    wanted = [f"{role}-{i + 1}" for role, n in COUNTS.items() for i in range(n)]
    assert [row[0].removeprefix("| ") for row in ROWS] == wanted


@pytest.mark.parametrize("row", ROWS, ids=[row[0].removeprefix("| ") for row in ROWS])
def test_its_tests_are_there(row: list[str]) -> None:
    cell = row[-1].removesuffix(" |")
    for name in cell.split(", ") if cell != "–" else ():
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), name


def test_pages_name_the_flower_that_is_pinned() -> None:
    [pinned] = re.findall(r"^flwr==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    for page in ("docs/start.md", "docs/deployment.md"):
        assert re.search(rf"Flower .{{,9}}{pinned}", (ROOT / page).read_text()), page
