"""Hooks of mkdocs: pages that lie outside `docs` join the site, and links to other files of the
repository lead to its forge."""

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
    And a number stays on one line with its interval."""
    source = Path(page.file.abs_src_path or "").resolve().relative_to(ROOT)

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

    return _LINK.sub(link, markdown).replace(" ± ", "\u00a0±\u00a0")


def _repository(kind: str) -> str:
    return f"https://github.com/pfedlora-flwr/pfedlora-flwr/{kind}/main"


def _uri(path: str) -> str:
    """Where a file of the repository stands in the site."""
    return "index.md" if path == "README.md" else path
