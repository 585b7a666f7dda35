"""The examples of the pages on own models, data and methods, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli

pytestmark = pytest.mark.slow
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("extending", "data", "own-method")]
BLOCK = re.compile(r"<!-- (file|run)(?:: (.*?))? -->\n```\w+\n(.*?)```", re.DOTALL)
SECTIONS = {
    title.splitlines()[0]: BLOCK.findall(title)
    for page in PAGES
    for title in page.split("\n## ")[1:]
}


def shell(cli: Cli, script: str) -> subprocess.CompletedProcess[str]:
    """A reader's shell in the example's folder: the commands of the environment that the tests run
    in."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = cli.environment | {"PATH": tools}
    command = ["bash", "-euc", script]
    return subprocess.run(
        command,
        cwd=cli.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("section", "run"),
    [
        ("A model", "own-model"),
        ("Files, tables, arrays and functions", "own-data"),
        ("A method", "own-method"),
        ("An observer", "own-observer"),
    ],
)
def test_the_example_runs(cli: Cli, section: str, run: str) -> None:
    outputs: dict[str, subprocess.CompletedProcess[str]] = {}
    for kind, argument, text in SECTIONS[section]:
        if kind == "file":
            (cli.folder / argument).write_text(text)
            continue
        done = shell(cli, text)
        outputs.setdefault(kind, done)
        assert done.returncode == 0, done.stderr
    result = json.loads((cli.folder / "runs" / run / "result.json").read_text())
    assert result["status"] == "completed"
    if section == "A model":
        assert [row["model"] for row in result["per_client"].values()] == [
            "mymodels:Depthwise",
            "cnn5",
        ] * 2
        widths = json.loads((cli.folder / "runs" / "own-widths" / "result.json").read_text())
        assert [row["model"] for row in widths["per_client"].values()] == [
            "mymodels:Narrow",
            "mymodels:Rows",
            "cnn5",
        ]
    if section == "Files, tables, arrays and functions":
        predictions = [
            re.search(r"pictures/(\w+)/0.png: (\w+)", line)
            for line in outputs["run"].stdout.splitlines()
            if "0.png" in line
        ]
        assert len(predictions) == 2
        assert all(p and p[2] in ("red", "green", "blue") for p in predictions)
    if section == "A method":
        assert result["communication"]["parameters_up"] == 2 * 4 * 5010


def test_every_section_has_an_example() -> None:
    assert [
        title for title, blocks in SECTIONS.items() if any(kind == "run" for kind, _, _ in blocks)
    ] == [
        *("A model", "An observer", "Files, tables, arrays and functions", "A method"),
    ]
