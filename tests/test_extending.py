"""The examples of the pages on own models, data and methods, run as they stand there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Call
from tests.test_examples import follow

pytestmark = pytest.mark.slow
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("extending", "data", "own-method")]
BLOCK = re.compile(r"<!-- (file|run)(?:: (.*?))? -->\n```\w+\n(.*?)```", re.DOTALL)
SECTIONS = {
    title.splitlines()[0]: BLOCK.findall(title)
    for page in PAGES
    for title in page.split("\n## ")[1:]
}
EXAMPLES = ("A model", "An observer", "Files, tables, arrays and functions", "A method")


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_example_runs(
    section: str, pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = list[str]()
    for kind, name, text in SECTIONS[section]:
        if kind == "file":
            (tmp_path / name).write_text(text)
            monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
        else:
            answers += follow(pfedlora, text.splitlines())
    results: dict[str, Any] = {
        path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/*.json")
    }
    assert {result["status"] for result in results.values()} == {"completed"}

    def models(run: str) -> list[str]:
        return [row["model"] for row in results[run]["per_client"].values()]

    if section == "A model":
        assert models("own-model") == ["mymodels:Depthwise", "cnn5"] * 2
        assert models("own-widths") == ["mymodels:Narrow", "mymodels:Rows", "cnn5"]
    elif section == "An observer":
        assert [*results] == ["own-observer"]
    elif section == "A method":
        assert results["own-method"]["communication"]["parameters_up"] == 2 * 4 * 5010
    else:
        assert {*results} == {"own-data", "windows"}
        found = [re.search(r"pictures/(\w+)/0.png: (red|green|blue)", line) for line in answers]
        assert [match and match[1] for match in found] == ["red", "blue"]


def test_every_section_has_an_example() -> None:
    there = [title for title, blocks in SECTIONS.items() if any(b[0] == "run" for b in blocks)]
    assert there == [*EXAMPLES]
