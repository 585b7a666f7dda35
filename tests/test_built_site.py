"""The site that `make site` leaves in build/site, in Chromium: what it asks for, whether all can
read it, and what its search finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.browser]
SITE = ROOT / "build" / "site"
PAGES = (
    *("", "start/", "decide/", "data/", "gallery/", "methods/", "keys/", "api/", "output/"),
    *("results/", "results/pretrained/", "results/which-method/", "privacy/", "deployment/"),
)
FIRST = {
    "own data": "data",
    "csv": "data",
    "GPU": "scaling",
    "Slurm": "scaling",
    "resume": "resume",
    "epsilon": "privacy",
    "TLS": "deployment",
    "Docker": "deployment",
    "LoRA": "lora",
    "text": "text",
    "timm": "pretrained",
    "BatchNorm": "fidelity",
    "Dirichlet": "words",
    "export": "predict",
    "ONNX": "predict",
    "pandas": "questions",
    "memory": "questions",
    "error": "questions",
    "regression": "questions",
    "cite": "questions",
    "fairness": "words",
}
"""The page that the search has first for a word."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "index.html").exists():
        pytest.skip("needs build/site (`make site`)")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=SITE)) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_pages_fit_ask_nobody_else_and_axe_finds_nothing(
    browser: Any, axe: Callable[[Any], list[str]], address: str, width: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab, asked = context.new_page(), set[str]()
    tab.on("request", lambda request: asked.add(request.url))
    found = dict[str, list[str]]()
    for page in PAGES:
        tab.goto(address + page)
        tab.wait_for_timeout(300)  # the theme's script wraps tables
        assert tab.locator("html").evaluate("e => e.scrollWidth") == width
        found[page] = axe(tab)
        assert len(tab.locator("meta[name=description]").get_attribute("content")) > 30
    context.close()
    assert {page: told for page, told in found.items() if told} == {}
    assert not [url for url in asked if not url.startswith((address, "data:"))]


def test_the_search_has_the_page_of_a_word_first(browser: Any, address: str) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(address)
    box = tab.locator("[data-md-component=search-query]")
    found = {}
    for word in FIRST:
        box.click()
        box.press("Control+a")
        box.press("Delete")
        tab.locator(".md-search-result__item").first.wait_for(state="detached")
        box.press_sequentially(word)
        begun = word.split()[0].lower()
        first = tab.locator(f".md-search-result__item a[href*='?h={begun}']").first
        first.wait_for(state="attached")
        tab.wait_for_timeout(300)
        first = tab.locator(".md-search-result__item a").first
        found[word] = first.get_attribute("href").removeprefix(address).partition("/?")[0]
    tab.close()
    assert found == FIRST
