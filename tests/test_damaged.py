"""Damaged run folders: our words, no traceback, and no wait, whatever the file, the damage and the
command."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pfedlora_flwr.comparison.plan import Plan
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.layout import check_forms
from tests.conftest import Call, Done, made_once, run_locally
from tests.wrong_inputs import files_in

COMMANDS = (
    "list .",
    "status run",
    "evaluate run --all-clients",
    "export run --client 0 --output out.safetensors",
    "audit run",
    "run --engine local --quiet --resume -o output=run",
    "run --engine local --quiet --resume -o output=run -o rounds=3",
)
DAMAGES: dict[str, Callable[[Path, int], object]] = {
    "zeroed": lambda file, at: file.write_bytes(bytes(file.stat().st_size)),
    "halved": lambda file, at: os.truncate(file, file.stat().st_size // 2),
    "flipped": lambda file, at: _flip(file, at),
    "longer": lambda file, at: file.write_bytes(file.read_bytes() + b"\xff"),
    "a folder": lambda file, at: (file.unlink(), file.mkdir()),
    "a pipe": lambda file, at: (file.unlink(), os.mkfifo(file)),
    "a loop": lambda file, at: (file.unlink(), file.symlink_to(file.name)),
    "gone": lambda file, at: file.unlink(),
    "deep": lambda file, at: file.write_text("[" * 100_000),
    "another": lambda file, at: file.write_text("[]"),
}
SECONDS = 60


def _flip(file: Path, at: int) -> None:
    held = bytearray(file.read_bytes())
    held[at % len(held)] ^= 1 << at % 8
    file.write_bytes(held)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    keys = {"clients": 2, "partition.kind": "iid", "rounds": 2, "dataset": "synthetic:100"}
    keys |= {"models": "tests.methods.narrow:Narrow", "audit.uploads": True}

    def train(folder: Path) -> None:
        assert run_locally(folder / "run", keys).code == 0

    return Done(0, "", "", made_once(tmp_path_factory, "damaged", train) / "run")


@contextmanager
def no_longer(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it still waits after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("PFEDLORA_DAMAGES", "12")),
    deadline=None,
    derandomize="PFEDLORA_DAMAGES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_damaged_run_is_named_or_made_no_use_of(
    whole: Done, pfedlora: Call, data: st.DataObject
) -> None:
    files = sorted(n for n, held in files_in(whole.output).items() if held)
    name = data.draw(st.sampled_from(files), "file")
    damage = data.draw(st.sampled_from([*DAMAGES]), "damage")
    command = data.draw(st.sampled_from(COMMANDS), "command")
    assume("lock" not in name)
    for place in ("run", "out.safetensors"):
        shutil.rmtree(place, ignore_errors=True)
        Path(place).unlink(missing_ok=True)
    shutil.copytree(whole.output, "run")
    DAMAGES[damage](Path("run") / name, data.draw(st.integers(0, 10**6), "at"))
    with no_longer(SECONDS):
        code, out, err = pfedlora(*command.split())
    assert code in range(7), (code, err)
    assert "Traceback" not in out + err
    assert "traceback in" not in err, err
    assert len(err.splitlines()) <= 3, err


@pytest.mark.parametrize(
    ("name", "damage", "words", "expected"),
    [
        ("result.json", "flipped", "status run", "result.json"),
        ("result.json", "flipped", COMMANDS[-2], "result.json"),
        ("rounds.jsonl", "flipped", "status run", "rounds.jsonl"),
        ("server/token", "longer", "evaluate run --client 0", ""),
        ("server/partition", "longer", COMMANDS[-1], "server/partition is damaged: restore it"),
        ("clients/0/about.json", "halved", "audit run", "clients/0/about.json cannot be read"),
        ("config.yaml", "a pipe", "list .", "config.yaml is no regular file"),
        ("clients/1/about.json", "a folder", "status run", "about.json is no regular file"),
        ("config.yaml", "deep", "status run", "config.yaml cannot be read"),
        ("result.json", "deep", "list .", "it nests too deeply"),
        ("clients/0/about.json", "deep", "evaluate run --client 0", "it nests too deeply"),
        ("server/hashes.json", "another", "status run", "server/hashes.json is damaged"),
    ],
)
def test_a_damaged_file_is_named(
    name: str, damage: str, words: str, expected: str, whole: Done, pfedlora: Call
) -> None:
    shutil.copytree(whole.output, "run")
    held = (Path("run") / name).read_bytes()
    DAMAGES[damage](Path("run") / name, held.rfind(b"0.") + 3)
    with no_longer(SECONDS):
        _, out, err = pfedlora(*words.split())
    assert expected in out + err
    assert "traceback in" not in err


@pytest.mark.parametrize(
    ("damage", "expected"), [("deep", "cannot be read as the plan"), ("a pipe", "no regular file")]
)
def test_a_damaged_plan_of_a_comparison_is_named(
    damage: str, expected: str, pfedlora: Call
) -> None:
    plan = Path("comparison") / "plan.json"
    Plan("a name", (0,), 0, ()).write(plan.parent)
    DAMAGES[damage](plan, 0)
    with no_longer(SECONDS):
        code, _, err = pfedlora("report", "comparison")
    assert (code, expected in err) == (2, True), err


def test_a_file_that_a_run_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's former model, as a comparison looks at a run that goes on."""
    model = tmp_path / "clients" / "2" / "round-000001.safetensors"
    model.parent.mkdir(parents=True)
    model.touch()
    there = os.path.isfile

    def removed(entry: os.DirEntry[str]) -> bool:
        Path(entry.path).unlink()
        return there(entry)

    monkeypatch.setattr(os.path, "isfile", removed)
    check_forms(tmp_path)
    monkeypatch.undo()
    os.mkfifo(model)
    with pytest.raises(UserError, match="safetensors is no regular file"):
        check_forms(tmp_path)
