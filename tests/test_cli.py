"""The command line itself: help without PyTorch, one line for a mistake, exit codes, and the commands that need no federation."""

from __future__ import annotations

import io
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pfedlora_flwr
from pfedlora_flwr import cli
from pfedlora_flwr.commands import doctor, submit
from pfedlora_flwr.commands.display import conclude, round_line, seconds_left, what_it_does
from pfedlora_flwr.config import all_keys, from_flat
from pfedlora_flwr.launch import flower
from pfedlora_flwr.launch.flower import LaunchError
from tests.conftest import ROOT
from tests.report.made import make_run


@pytest.fixture
def pfedlora(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`pfedlora WORDS…` in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pfedlora", *words])
        with pytest.raises(SystemExit) as raised:
            cli.main()
        return int(raised.value.code or 0), *capsys.readouterr()

    return call


def test_help_does_not_import_pytorch() -> None:
    script = "import sys\nsys.argv = ['pfedlora', '--help']\nfrom pfedlora_flwr import cli\ntry: cli.main()\nexcept SystemExit: pass\n"
    script += "assert not {'torch', 'numpy', 'flwr'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Commands:" in done.stdout


def test_every_command_has_plain_help_that_names_its_arguments(pfedlora: Any) -> None:
    arguments = {"run": "CONF", "compare": "CONF", "report": "RUN_OR_DIR", "predict": "IMAGE", "export": "RUN", "doctor": ""}
    for command, argument in arguments.items():
        code, text, _ = pfedlora(command, "--help")
        assert code == 0
        assert "\\" not in text
        assert text.count(argument) >= 2, "in the usage, and what it means"
    _, text, _ = pfedlora("run", "--help")
    assert all(f"  {name} = " in text for name in all_keys())


def test_the_version(pfedlora: Any) -> None:
    assert pfedlora("--version") == (0, f"pfedlora-flwr {pfedlora_flwr.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "-o", "mu=2"], "mu is 2.0; allowed"),
        (["compare", "nowhere.yaml"], "nowhere.yaml: no such file, and no configuration that comes with pfedlora"),
        (["report", "a", "b"], "several paths are given: say with --output"),
        (["predict", "nowhere", "--client", "0", "image.png"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(pfedlora: Any, words: list[str], expected: str) -> None:
    code, out, err = pfedlora(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err


def test_report_writes_beside_the_runs_and_prints_its_tables(pfedlora: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", [0.1, 0.5, 0.7], [0.6, 0.8], method="pfedlora")
    code, out, _ = pfedlora("report", "runs")
    assert code == 0
    assert "pFedLoRA" in out
    assert "70.00" in out
    assert "## Figures" not in out
    assert out.endswith("the report is in runs/report\n")
    assert (tmp_path / "runs" / "report" / "report.html").exists()


def test_doctor_says_what_to_do_for_each_thing_to_fix(pfedlora: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> list[str]:
        if package != "pfedlora-flwr":
            return ["ray>=999; extra == 'simulation'", "torch>=999; extra == 'other'"]
        return [
            "flwr[simulation]<2,>=1",
            "numpy>=999",
            "no-such-package>=2",
            "pytest>=999; extra == 'dev'",
            "typer>=999; python_version < '3'",
        ]

    monkeypatch.setattr(doctor, "requires", requires)
    monkeypatch.setattr(doctor, "_LOW_DISK", 0.0)
    monkeypatch.setattr(doctor, "_LOW_MEMORY", 0.0)
    monkeypatch.setattr(doctor, "_torchvision", lambda: doctor.Check("import torchvision", "fine"))
    code, out, _ = pfedlora("doctor")
    assert code == 1
    after = out.partition("3 to fix\n")[2].splitlines()
    assert after == [
        '  ray: pip install "ray>=999"',
        '  numpy: pip install "numpy>=999"',
        '  no-such-package: pip install "no-such-package>=2"',
    ]
    monkeypatch.setattr(doctor, "requires", lambda package: ["flwr>=1"])
    code, out, _ = pfedlora("doctor")
    assert code == 0
    assert "nothing to fix" in out


def test_doctor_of_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> list[str]:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "requires", requires)
    [check] = doctor._packages()
    assert (check.what, check.found) == ("pfedlora-flwr", "missing")
    assert check.fix == "pip install -e . in the folder of its pyproject.toml"


def test_exit_codes_of_what_came_of_a_run() -> None:
    out, err = Console(quiet=True), Console(file=(said := io.StringIO()), width=200)
    assert conclude({"status": "failed", "error": "no"}, "here", out, err) == 1
    assert conclude({"status": "stopped", "error": "by the user", "rounds": 3, "resumable": True}, "here", out, err) == 130
    assert said.getvalue() == "failed: no\nstopped: by the user; continue it with --resume\n"


def test_a_submission_that_is_not_taken_is_one_line_and_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere(name: str) -> str:
        raise LaunchError(f"the command `{name}` is nowhere")

    monkeypatch.setattr(flower, "tool", nowhere)
    monkeypatch.setattr(submit.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(submit, "on_terminate", lambda *numbers: None)
    out, err = Console(quiet=True), Console(file=(said := io.StringIO()), width=200)
    assert submit.submit(from_flat({}), "there", out, err) == 1
    assert said.getvalue() == "failed: the command `flwr` is nowhere\n"


def test_a_run_in_words() -> None:
    e = from_flat({"rounds": 10})
    sent = {"accuracy": 0.5, "bytes_up": 1_000_000, "bytes_down": 500_000}
    rounds = [{"round": r, "seconds": s, **sent} for r, s in enumerate([50.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0])]
    assert seconds_left([], 10) is None
    assert seconds_left(rounds[:1], 10) is None, "round 0 only evaluates"
    assert seconds_left(rounds[:3], 10) == 8 * 5.5
    assert seconds_left(rounds, 10) == 4 * 2.0, "by the last five rounds"
    assert round_line(e, rounds) == "round 6/10 · accuracy 0.5000 · 10.50 MB · 8 s left"
    assert what_it_does(e, None, []) == "starting"
    assert what_it_does(e, {"phase": "connecting", "done": 1, "of": 3}, []) == "1 of 3 clients connected"
    assert what_it_does(e, {"phase": "evaluating", "done": 1, "of": 3}, []) == "evaluating the initial models: 1 of 3"
    assert what_it_does(e, {"phase": "training", "done": 1, "of": 3}, rounds) == round_line(e, rounds) + " · 1/3"
