"""The drafts' examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DRAFTS = sorted((Path(__file__).resolve().parents[1] / "docs" / "drafts").glob("*.md"))


@pytest.mark.parametrize("page", DRAFTS, ids=lambda page: page.stem)
def test_every_finding_of_a_draft_is_shown_by_its_lines(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 1
    names: dict[str, object] = {}
    for block in blocks:
        assert "assert" in block or block is blocks[0]
        exec(block, names)
