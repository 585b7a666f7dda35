"""A place of its own for tests that read and keep data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, whose modules can be imported, with a cache in it; what was read before
    is read anew."""
    from pfedlora_flwr.data.local import forget

    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    forget()
