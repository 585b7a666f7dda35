"""Figures whose numbers are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out once, and not written in three forms."""
    from matplotlib.figure import Figure

    def lay_out(self: Figure, path: Path, **options: object) -> None:
        if path.suffix == ".png":
            self.draw_without_rendering()

    monkeypatch.setattr(Figure, "savefig", lay_out)
