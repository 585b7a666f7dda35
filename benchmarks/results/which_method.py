"""The table of decisions: words, which rest on the pages that its cells name."""

from __future__ import annotations

from benchmarks.results.page import Page


def make(page: Page) -> None:
    page.settings("0.5", "0.9")
