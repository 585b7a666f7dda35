"""Lists the sentences of the documents that are too long: `make prose`, or with the pages' names.

A sentence ends at `.`, `!`, `?` or with its paragraph, list item or table cell. Code is left out,
inline code counts as one word, and so does a list of methods that `make docs` writes. `--words`
prints each page's words and its longest sentence.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 35
"""The most words of a sentence (CONTRIBUTING.md)."""
PAGES = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "tests/README.md",
    "examples/**/*.md",
    "docs/**/*.md",
    "benchmarks/RECORDS.md",
)
ALLOWED: dict[str, int] = {}
"""Pages with long sentences left, and how many: to shrink, never to grow."""
_END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[*_(\"“`\[]*[\wΔΣα-ω`])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|al|vs|Eq|No|approx)\.$")


def pages() -> list[Path]:
    """The documents that the limit holds for."""
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def sentences(text: str) -> Iterator[str]:
    """The sentences of a Markdown text, its markup left out."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type != "inline":
            continue
        parts, written = [], False
        for child in token.children or []:
            if child.type == "html_inline" and child.content.startswith("<!-- "):
                written = child.content.startswith("<!-- methods:")
                parts.append("list " if written else "")
            elif written:
                continue
            elif child.type == "code_inline":
                parts.append("`" + "_".join(child.content.split()) + "`")
            elif child.type in ("text", "softbreak", "hardbreak"):
                parts.append(child.content or " ")
            elif child.type == "html_inline" and child.content == "<br>":
                parts.append(". ")
        yield from _split("".join(parts))


def words(sentence: str) -> int:
    """How many words a sentence has: what holds a letter or a digit."""
    return sum(any(sign.isalnum() for sign in word) for word in sentence.split())


def too_long(path: Path) -> list[str]:
    """The sentences of a page above the limit."""
    found = sentences(path.read_text(encoding="utf-8"))
    return [sentence for sentence in found if words(sentence) > LIMIT]


def _split(text: str) -> Iterator[str]:
    sentence = ""
    for part in _END.split(text):
        sentence = f"{sentence} {part}".strip()
        if not _ABBREVIATION.search(sentence):
            yield sentence
            sentence = ""
    if sentence:
        yield sentence


def main() -> None:
    """Prints every sentence above the limit with its page and length, and exits with 1 if one is
    not allowed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files; default: all")
    parser.add_argument("--words", action="store_true", help="words of each page instead")
    arguments = parser.parse_args()
    failed = False
    for path in arguments.pages or pages():
        name = path.resolve().relative_to(ROOT).as_posix() if path.is_absolute() else str(path)
        if arguments.words:
            lengths = [words(sentence) for sentence in sentences(path.read_text(encoding="utf-8"))]
            print(f"{name}: {sum(lengths)} words, longest sentence {max(lengths, default=0)}")
            continue
        found = too_long(path)
        failed = failed or len(found) > ALLOWED.get(name, 0)
        for sentence in found:
            print(f"{name}: {words(sentence)} words: {sentence}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
