"""The pages of docs/results have the numbers, lines and pictures that their CSVs give."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks.results import front
from benchmarks.results.__main__ import PAGES, check, locked, unseeded
from benchmarks.results.page import RESULTS, Page, estimate, points
from tests.conftest import ROOT


@pytest.mark.slow  # draws five pictures
def test_every_page_is_what_its_run_tables_give() -> None:
    assert check(RESULTS, pictures=locked(), write=False) == []


CHANGES = (
    ("leaderboard/README.md", "| 50.77 ± 1.88 | **+4.00", "| 50.78 ± 1.88 | **+4.00", "50.78"),
    ("leaderboard/README.md", "2.41 ± 1.68", "2.41 ± 1.78", "2.41 ± 1.78 is in the prose"),
    ("gain/confirmed.csv", "33.1880", "34.1880", "gain/README.md: table confirmed"),
    ("sensitivity/points.csv", "0.2625532899695884", "0.3625532899695884", "differences.csv"),
)


@pytest.mark.slow
def test_a_changed_number_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    for file, before, after, _ in CHANGES:
        text = (folder / file).read_text()
        assert before in text
        (folder / file).write_text(text.replace(before, after, 1))
    told = check(folder, pictures=False, write=True)
    for *_, named in CHANGES:
        assert any(named in line for line in told), named
    # written anew, its tables are what it gives: no table differs now
    assert not [line for line in check(folder, pictures=False, write=False) if "table" in line]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# A\n\n- **FD leads by 3 points**.", "'FD leads by 3 points' names no seeds"),
        ("# A\n\nOne seed.\n\n- **FD leads**.", "'FD leads' stands on one seed"),
        ("# A\n\nFive seeds.\n\n- **FD leads**, of one seed.", "'FD leads' stands on one seed"),
        ("# A\n\nFive seeds.\n\n- **FD leads**.", ""),
        ("# A\n\n- **Limits**: nothing.", ""),
    ],
)
def test_a_bold_claim_without_seeds_is_refused(text: str, told: str) -> None:
    assert unseeded(text) == ([told] if told else [])


def test_a_number_of_the_prose_is_rounded_once(tmp_path: Path) -> None:
    page = Page(tmp_path)
    page.says(estimate({"0": 0.9923496}))
    assert page.unknown("99.23, not 99.24") == ["99.24"]


def test_a_page_that_nothing_makes_is_named() -> None:
    folders = {path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("README.md")}
    assert folders - {"."} == PAGES.keys()


@pytest.mark.slow
def test_the_readmes_picture_shows_what_the_pages_say(tmp_path: Path) -> None:
    index = Page(RESULTS)
    front.make(index)
    for lines, text, mark in (
        (
            front.pretrained,
            (RESULTS / "pretrained" / "table-images-10.csv").read_text()
            + Page(RESULTS / "one-round").text(),
            "*",
        ),
        (front.from_scratch, Page(RESULTS / "leaderboard").text(), ""),
    ):
        methods = [line for line in lines(index) if line.without is not None]
        leads = {line.name: points(line.lead).strip(mark) for line in methods}
        assert [name for name, lead in leads.items() if lead not in text] == []
    shutil.copytree(RESULTS, tmp_path / "results")
    table = tmp_path / "results" / "leaderboard" / "runs.csv"
    table.write_text(re.sub(r"(mean,fedproto,0,)0\.\d+", r"\g<1>0.9", table.read_text()))
    changed = Page(tmp_path / "results")
    front.make(changed)
    assert [*changed.drawn_otherwise(pictures=True)] == [
        "found-light.svg is drawn otherwise",
        "found-dark.svg is drawn otherwise",
    ]


LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]+)?\)")


def test_links_to_and_from_the_results_lead_somewhere() -> None:
    pages = [*RESULTS.rglob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    missing = []
    for page in pages:
        for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / path).resolve() if path else page
            if path.startswith(("http", "mailto")) or not (
                RESULTS in page.parents or RESULTS in target.parents
            ):
                continue
            if not target.exists() or (anchor and anchor[1:] not in anchors(target)):
                missing.append(f"{page.relative_to(ROOT)}: {path}{anchor}")
    assert not missing


def anchors(page: Path) -> set[str]:
    """A page's headings as a forge addresses them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
