"""Hooks of mkdocs: pages that lie outside `docs` join the site, links to other files of the
repository lead to its forge, and each page has its description and its weight in the search."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
JOINING = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples")
"""Files and folders at the repository's root that are part of the site."""
SUFFIXES = (".md", ".png", ".svg")
UNSEARCHED = ("CHANGELOG.md", "docs/architecture.md")
"""What no user looks for; the search leaves them out."""
FOUND_FIRST = {
    **dict.fromkeys(("data", "deployment", "lora", "methods", "resume", "text"), 3),
    **{"pretrained": 6, "privacy": 6, "predict": 5, "questions": 5, "words": 5},
}
FOUND_LATE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/output.md", "docs/results/")
"""Pages that the search puts before (by how much) or after others that have the word as often."""
_PAIR = re.compile(
    r'<picture>\s*<source[^>]*srcset="([^"]*)">\s*<img src="([^"]*)"([^>]*)>\s*</picture>'
)
_LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?!https?:|#|mailto:)([^)\"\s#]+)(#[^)\"\s]*)?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures that lie outside `docs`; README.md becomes index.md."""
    for name in JOINING:
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if file.suffix in SUFFIXES:
                uri = _uri(file.relative_to(ROOT).as_posix())
                files.append(File.generated(config, uri, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Links as the site has them: they are written for the repository, from the file's own place.
    A number stays on one line with its interval, and a picture follows the site's own switch."""
    source = Path(page.file.abs_src_path or "").resolve().relative_to(ROOT)
    name = source.as_posix()
    page.edit_url = _repository("edit") + "/" + name
    page.meta["search"] = {"exclude": name in UNSEARCHED, "boost": _boost(name)}
    page.meta["description"] = _description(markdown)

    def link(found: re.Match[str]) -> str:
        before, target, anchor = found[1], found[2], found[3] or ""
        place = posixpath.normpath(posixpath.join(source.parent.as_posix(), target))
        uri = _uri(place.removeprefix("docs/"))
        if files.get_file_from_path(uri):
            if before == "](":
                return (
                    before + posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) + anchor
                )
            here = posixpath.dirname(page.file.dest_uri)
            return before + posixpath.relpath(files.get_file_from_path(uri).dest_uri, here) + anchor
        if not (ROOT / place).exists():
            return found[0]  # mkdocs names it
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"{before}{_repository(kind)}/{place}{anchor}"

    markdown = _LINK.sub(link, markdown).replace(" ± ", "\u00a0±\u00a0")
    return _PAIR.sub(r'<p><img src="\1#only-dark"\3><img src="\2#only-light"\3></p>', markdown)


def _boost(name: str) -> float:
    late = 0.3 if name.startswith(FOUND_LATE) else 1
    return FOUND_FIRST.get(name.removeprefix("docs/").removesuffix(".md"), late)


def _description(markdown: str) -> str:
    """The first paragraph, without marks, for search engines."""
    of_words = re.compile(r"^\**\w")
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    first = next(filter(of_words.match, text.split("\n\n")), "")
    return re.sub(r"\]\([^)]*\)|[\[`*_]", "", " ".join(first.split()))


def _repository(kind: str) -> str:
    return f"https://github.com/pfedlora-flwr/pfedlora-flwr/{kind}/main"


def _uri(path: str) -> str:
    """Where a file of the repository stands in the site."""
    return "index.md" if path == "README.md" else path
