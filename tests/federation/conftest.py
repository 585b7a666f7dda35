"""What tests of messages share."""

from __future__ import annotations

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be made: they belong to a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
