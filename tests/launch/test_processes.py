"""A process that we start finds the code that its parent found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pfedlora_flwr
from pfedlora_flwr.launch.processes import ours


def test_a_package_of_our_name_in_the_current_folder_is_not_ours_and_a_users_module_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody compares by one checkout, standing in another: children imported the
    other's."""
    (tmp_path / "pfedlora_flwr").mkdir()
    (tmp_path / "pfedlora_flwr" / "__init__.py").write_text("raise SystemExit('this is another')\n")
    (tmp_path / "own.py").write_text("import pfedlora_flwr\nprint(pfedlora_flwr.__file__)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # as the command line does
    command, environment = ours("own")
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip() == pfedlora_flwr.__file__
