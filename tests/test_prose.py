"""The documents' sentences stay short (CONTRIBUTING.md, "English")."""

from __future__ import annotations

import re
import tomllib

from scripts import long_sentences
from tests.conftest import ROOT


def test_sentences_end_where_a_reader_ends_them() -> None:
    text = """
# A title

One idea. `two words` as one, see Yi et al. 2023, e.g. Table 2. *Another one?* Yes.

| a cell | of three words |
| --- | --- |
| first. Second | x |

- an item
  goes on

```
no sentence at all
```
"""
    found = list(long_sentences.sentences(text))
    assert found == [
        "A title",
        "One idea.",
        "`two_words` as one, see Yi et al. 2023, e.g. Table 2.",
        "Another one?",
        "Yes.",
        "a cell",
        "of three words",
        "first.",
        "Second",
        "x",
        "an item goes on",
    ]
    assert [long_sentences.words(sentence) for sentence in found[:3]] == [2, 2, 11]


def test_no_page_has_more_long_sentences_than_it_is_allowed() -> None:
    pages = long_sentences.pages()
    assert len(pages) > 15
    over = {
        page.relative_to(long_sentences.ROOT).as_posix(): found
        for page in pages
        if len(found := long_sentences.too_long(page))
        > long_sentences.ALLOWED.get(page.relative_to(long_sentences.ROOT).as_posix(), 0)
    }
    assert not over


def test_the_readme_on_pypi_has_whole_addresses_of_files_that_are_there() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]
    text = (ROOT / "README.md").read_text()
    for change in built["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    found = re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)', text)
    own = [re.split(r"/pfedlora-flwr/pfedlora-flwr/(?:blob/)?main/", address) for address in found]
    assert all(address.startswith("https://") for address in found)
    files = [parts[1].partition("#")[0] for parts in own if len(parts) == 2]
    assert {"docs/results/found-dark.svg", "docs/results/found-light.svg"} <= {*files}
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_readme_is_one_screen_and_a_half() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 80
    assert len(text.split()) <= 900
    assert "bonferroni" not in text.lower()
