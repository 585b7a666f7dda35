"""Makes the pages of docs/results anew from their CSVs.

    python -m benchmarks.results [--check]

Prints a line for each number, line or picture that the pages had otherwise, writes what it has made
(with `--check` nothing), and exits with 1 if there was any. Pictures are compared byte by byte in
the locked environment (constraints.txt) alone; elsewhere they are left as they are."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.results import (
    attacks,
    audit,
    cifar10_table2,
    costs,
    dp,
    front,
    gain,
    held_out,
    kinds,
    leaderboard,
    lora,
    methods_cifar10,
    methods_cifar100,
    normalised,
    one_round,
    personal,
    pretrained,
    sensitivity,
    sharing,
    start,
    which_method,
)
from benchmarks.results.page import RESULTS, Page

PAGES: Mapping[str, Callable[[Page], None]] = {
    "attacks": attacks.make,
    "audit": audit.make,
    "cifar10-table2": cifar10_table2.make,
    "costs": costs.make,
    "dp": dp.make,
    "gain": gain.make,
    "held-out": held_out.make,
    "kinds": kinds.make,
    "leaderboard": leaderboard.make,
    "lora": lora.make,
    "methods": methods_cifar10.make,
    "methods/cifar100": methods_cifar100.make,
    "normalised": normalised.make,
    "one-round": one_round.make,
    "personal": personal.make,
    "pretrained": pretrained.make,
    "sensitivity": sensitivity.make,
    "sharing": sharing.make,
    "start": start.make,
    "which-method": which_method.make,
}
"""What makes the page of a folder: a new page is a line here."""
CLAIM = re.compile(
    r"\b(leads?|beats?|pass(es)?|gains?|harms?|helps?|improves?|wins?|above|below|better|worse|more"
    r"|less|higher|lower)\b"
)
"""What a sentence says that compares methods."""
ONE_SEED = re.compile(r"\b(one|a single) seed\b|\bseed \d\b", re.IGNORECASE)
SEEDS = re.compile(r"\bseeds\b|\b(every|each|by|over) seed\b", re.IGNORECASE)
README = RESULTS.parents[1] / "README.md"
DRAWING = ("matplotlib", "numpy", "pillow")


def main(arguments: list[str]) -> int:
    pictures = locked()
    if not pictures:
        print(f"pictures are not compared: {', '.join(DRAWING)} are not those of constraints.txt")
    found = check(RESULTS, pictures=pictures, write="--check" not in arguments)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(PAGES)} pages, {len(found)} differences")
    return 1 if found else 0


def check(results: Path, *, pictures: bool, write: bool) -> list[str]:
    """What differs in the pages of that folder, a line each; writes them anew if asked."""
    found = [
        f"{path.parent.relative_to(results)}/README.md is made by no line of PAGES"
        for path in sorted(results.rglob("*/README.md"))
        if path.parent.relative_to(results).as_posix() not in PAGES
    ]
    pages = {name: Page(results / name) for name in PAGES}
    for name, page in pages.items():
        PAGES[name](page)
    for name, page in pages.items():
        found += [
            f"{name}/README.md: {number} is not on {other}/README.md"
            for other, number in sorted(page.quoted)
            if number not in pages[other].said
        ]
        found += [f"{name}/README.md: {line}" for line in page.differences(pictures=pictures)]
        if write:
            page.write(pictures=pictures)
    index = Page(results)
    front.make(index)
    index.said = set().union(*(page.said for page in pages.values()))
    index.settings("3.11", "3.13", "2310.13283")  # of the project's README
    for text in (index.text(), README.read_text(encoding="utf-8")):
        found += [f"README.md: {n} is on no page of results" for n in index.unknown(text)]
    for name, page in pages.items():
        found += [f"{name}/README.md: {line}" for line in unseeded(page.text())]
    found += [f"README.md: {line}" for line in unseeded(README.read_text(encoding="utf-8"))]
    found += index.drawn_otherwise(pictures=pictures)
    if write:
        index.write(pictures=pictures)
    return found


def unseeded(text: str) -> list[str]:
    """The bold claims of a page that name no seeds, or one alone: in their own line, else in their
    section, else in the first line of the page that does."""
    sections = re.split(r"^(?=#|<summary>)", text, flags=re.MULTILINE)
    first = next((line for line in text.splitlines() if "seed" in line.lower()), "")
    found = []
    for section in sections:
        for line in section.splitlines():
            claims = [bold for bold in re.findall(r"\*\*(.+?)\*\*", line) if CLAIM.search(bold)]
            near = [part for part in (line, section, first) if "seed" in part.lower()]
            one = bool(near) and ONE_SEED.search(near[0]) and near[0] == line
            if claims and not near:
                found.append(f"{claims[0]!r} names no seeds")
            elif claims and not SEEDS.search(line if one else " ".join(near)):
                found.append(f"{claims[0]!r} stands on one seed")
    return found


def locked() -> bool:
    """Whether what draws here is what constraints.txt names."""
    text = (RESULTS.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    named = dict(re.findall(r"^([\w-]+)==(\S+)", text, re.MULTILINE))
    return all(importlib.metadata.version(name) == named[name] for name in DRAWING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
