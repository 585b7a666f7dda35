"""The report's page: its order and words by a parser, and in Chromium its script, widths and
modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.ops.report import report
from tests.report.made import make_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two methods, Pooled and a control over three seeds; sites are 30 points apart."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        for method, sharing, mean in (
            ("standalone", "mean", 0.611),
            ("pooled", "mean", 0.722),
            ("fedavg", "mean", 0.633),
            ("pfedlora", "mean", 0.677),
            ("pfedlora", "none", 0.644),
        ):
            keys = {"method": method, "sharing": sharing, "seed": seed, "models": "cnn5"}
            value = mean * (1 + seed / 200)
            make_run(
                runs / f"{method}-{sharing}-{seed}",
                [0.1, 0.3, value],
                [value, value + 0.15, value - 0.15],
                **keys,
            )
    return report([runs]).written.folder / "report.html"


@pytest.mark.slow
def test_the_page_goes_from_the_verdict_to_folds_and_says_each_accuracy_once(page: Path) -> None:
    text = page.read_text()
    shown = text.partition("</style>")[2].partition("<script>")[0]
    places = [
        shown.index(what)
        for what in (
            '<div class="conclusion"><p>With sharing. Helps: ',
            "<h2>Who gains</h2>",
            "<h3>Verdict</h3>",
            "<h3>Gain by site</h3>",
            "<h2>Accuracy and cost</h2>",
            "<h2>Curves</h2>",
            "<h2>The data</h2>",
            '<details class="fold"><summary>Other accuracies</summary>',
            "<summary>Gain from sharing</summary>",
            "<summary>What this comparison could have seen</summary>",
            "<summary>Further figures</summary>",
            "<summary>What was run</summary>",
        )
    ]
    assert places == sorted(places)
    once = re.search(r"<h2>Accuracy and cost.*?</table>", shown, re.S)
    assert once
    means = re.findall(r">(?:<b>)?(\d\d\.\d\d) ± ", once[0])
    assert len({*means}) == 5  # Standalone, Pooled, FedAvg, pFedLoRA, and this without sharing
    final = r"<summary>Other accuracies.*?</table>"  # here the last round is the best one
    others = re.sub(final, "", shown.replace(once[0], ""), flags=re.S)
    assert not [mean for mean in means if f">{mean} ±" in others]
    words = re.findall(r"<(?:h\d|t[hd]|figcaption|summary)[^>]*>(.*?)</", shown)
    assert {"accuracy with sharing", "accuracy without sharing"} <= {*words}
    assert not [text for text in words if re.search("sharing=|mean −|all runs", text)]


@pytest.fixture
def opened(browser: Any, page: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, in a context of the parameter's options; nothing may be loaded or complained of."""
    context = browser.new_context(**request.param)
    tab, said = context.new_page(), list[str]()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda asked: said.append(asked.url))
    tab.goto(page.as_uri())
    yield tab
    context.close()
    assert said == [page.as_uri()]


WIDE = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 400, "height": 800}}
DARK = WIDE | {"color_scheme": "dark"}
NO_SCRIPT = WIDE | {"java_script_enabled": False}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("opened", [WIDE, PHONE, DARK, NO_SCRIPT], indirect=True)
def test_the_page_fits_its_screen_and_can_be_read(opened: Any) -> None:
    width = opened.viewport_size["width"]
    sizes = opened.locator("h1, h2, .conclusion, figure, .wide, summary").evaluate_all(
        "found => found.filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right)"
    )
    assert sizes
    assert max(sizes) <= width
    assert opened.locator("html").evaluate("e => e.scrollWidth") == width
    ink, ground = opened.locator("body").evaluate(
        "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor].map("
        "text => text.match(/\\d+/g).reduce((a, b) => a + Number(b), 0))"
    )
    assert abs(ink - ground) > 500  # of 765
    assert opened.locator("details.fold[open]").count() == 0
    opened.get_by_text("What was run").click()  # folds need no script
    assert opened.get_by_text("Versions").is_visible()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("opened", [WIDE, PHONE, DARK], indirect=True)
def test_axe_finds_nothing_on_the_page(opened: Any, axe: Callable[[Any], list[str]]) -> None:
    assert axe(opened) == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("opened", [WIDE], indirect=True)
def test_a_heading_sorts_and_a_name_hides_its_lines(opened: Any) -> None:
    table = opened.locator("table").filter(has=opened.get_by_role("button", name="training rows"))

    def column(number: int) -> list[str]:
        return table.locator(f"tbody td:nth-child({number})").all_text_contents()

    before = column(1)
    table.get_by_role("button", name="site").click()
    assert column(1) == sorted(before)
    table.get_by_role("button", name="site").click()
    assert column(1) == sorted(before, reverse=True)
    table.get_by_role("button", name="pFedLoRA").click()  # numbers: the largest first
    assert column(4) == sorted(column(4), key=float, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("pFedLoRA")
    figure = opened.locator("figure").filter(has=opened.locator(".lines")).first
    lines = figure.locator('[data-of="FedAvg"]')
    assert lines.count() >= 4  # in three panels, with their bands
    button = figure.get_by_role("button", name="FedAvg")
    for shown in (False, True):
        button.focus()
        opened.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == str(shown).lower()
        states = lines.evaluate_all("found => found.map(e => e.style.display)")
        assert {*states} == {"" if shown else "none"}
    others = figure.locator('[data-of="pFedLoRA"]').evaluate_all("f => f.map(e => e.style.display)")
    assert {*others} == {""}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("opened", [DARK], indirect=True)
def test_a_print_is_black_on_white_without_buttons_and_closed_folds(opened: Any) -> None:
    opened.emulate_media(media="print")
    look = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    assert opened.locator("body").evaluate(look) == ["rgb(29, 33, 39)", "rgb(255, 255, 255)"]
    assert not opened.locator(".lines").first.is_visible()
    assert not opened.get_by_text("Other accuracies").is_visible()
    assert opened.locator(".conclusion").is_visible()
    assert len(opened.pdf(format="A4")) > 10_000
