"""The command line itself: help without PyTorch, one line for a mistake, exit codes, and the
commands that need no federation."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from functools import reduce
from importlib.metadata import PackageNotFoundError
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pfedlora_flwr
from pfedlora_flwr.commands import doctor, run, submit
from pfedlora_flwr.commands.display import conclude
from pfedlora_flwr.config import all_keys, from_flat, run_config
from pfedlora_flwr.launch import flower
from pfedlora_flwr.launch.flower import LaunchError
from pfedlora_flwr.launch.processes import Stopped, stoppable
from pfedlora_flwr.ops.progress_text import Course, round_line
from pfedlora_flwr.runs.lines import SoFar, seconds_left
from pfedlora_flwr.runs.result import RESULT_LINE
from tests.conftest import ROOT, Call
from tests.report.made import make_run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        ("--help", {}, "Commands:"),
        ("run --help", {}, "dp.level=user"),
        ("keys hidden-dim", {}, "adapter.hidden-dim=60"),
        ("", {"COMP_WORDS": "pfedlora run -o adapter.h", "COMP_CWORD": "3"}, "adapter.hidden-dim="),
    ],
    ids=["help", "help of run", "keys", "completion in the shell"],
)
def test_help_and_completion_do_not_import_pytorch(
    words: str, variables: dict[str, str], told: str
) -> None:
    script = (
        f"import sys\nsys.argv = ['pfedlora', *{words.split()}]\nfrom pfedlora_flwr import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
    )
    asked = variables and variables | {"_PFEDLORA_COMPLETE": "complete_bash"}
    script += "assert not {'torch', 'numpy', 'flwr'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | asked,
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def test_a_tilde_after_an_equals_sign_is_the_home_folder(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    make_run(tmp_path / "run", [0.1, 0.5], [0.6, 0.8])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert pfedlora("report", "run", "--output=~/r")[0] == 0
    assert (tmp_path / "home" / "r" / "report.md").exists()
    assert not (tmp_path / "~").exists()


def test_every_command_has_plain_help_that_names_its_arguments(pfedlora: Call) -> None:
    arguments = {
        "run": "CONF",
        "compare": "CONF",
        "report": "RUN_OR_DIR",
        "predict": "PATH",
        "evaluate": "DATA",
        "export": "RUN",
        "status": "RUN",
        "doctor": "",
    }
    for command, argument in arguments.items():
        code, text, _ = pfedlora(command, "--help")
        assert code == 0
        assert "\\" not in text
        assert text.count(argument) >= 2, "in the usage, and what it means"
    _, text, _ = pfedlora("run", "--help")
    assert all(f" {name}=" in text for name in all_keys())


def test_the_version(pfedlora: Call) -> None:
    assert pfedlora("--version") == (0, f"pfedlora-flwr {pfedlora_flwr.__version__}\n", "")


@pytest.mark.slow
def test_report_writes_beside_the_runs_and_prints_its_verdict_and_one_table(
    pfedlora: Call, tmp_path: Path, no_figures: None
) -> None:
    for seed in range(3):
        for method, mean in (("standalone", 0.5), ("pfedlora", 0.7 + seed / 100)):
            run = tmp_path / "runs" / f"{method}-{seed}"
            make_run(run, [0.1, 0.5, mean], [mean, 0.8], method=method, seed=seed)
    code, out, _ = pfedlora("report", "runs")
    assert code == 0
    assert out.startswith("Helps: pFedLoRA +21.00 points of accuracy against training alone")
    shown = [line for line in out.splitlines() if line.startswith("│")]
    assert len(shown) == 2
    assert len([line for line in out.splitlines() if line.startswith("┃")]) <= 4
    assert all(len(line) <= 80 for line in shown)
    assert all(word in shown[-1] for word in ("pFedLoRA", "71.00 ±", "480 B"))
    assert "| ---" not in out
    assert out.endswith("the report is runs/report/report.html\n")
    assert (tmp_path / "runs" / "report" / "report.html").exists()


def test_doctor_says_what_to_do_for_each_thing_to_fix(
    pfedlora: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    def code(status: str, error: str, **more: Any) -> int:
        result: Any = {"status": status, "error": error, **more}
        return conclude(result, "here", out, err, "again")

    assert code("failed", "no") == 1
    assert code("failed", "no", rounds=3, resumable=True) == 1
    assert code("stopped", "stopped by the user", rounds=3, stopped_by="user") == 130
    assert code("stopped", "stopped by SIGTERM", stopped_by="system") == 75
    assert code("failed", "a bug", rounds=3, resumable=False) == 1
    assert said.getvalue().splitlines() == [
        "failed: no",
        "failed after round 3: no",
        "to continue once that is mended: again",
        "stopped by the user after round 3",
        "to continue: again",
        "stopped by SIGTERM",
        "no round was completed; the same command starts it again",
        "failed after round 3: a bug",
    ]


def test_the_command_that_continues_a_run_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        run.again(tmp_path / "runs" / "a b", "local")
        == "pfedlora run --resume -o 'output=runs/a b' --engine local"
    )
    assert (
        run.again(Path("/elsewhere/x"), "flower") == "pfedlora run --resume -o output=/elsewhere/x"
    )
    words = ["run", "a.yaml", "--superlink", "site", "--overwrite"]
    assert submit.again(words, "/x") == "pfedlora run a.yaml --superlink site -o output=/x --resume"
    assert (
        submit.again([*words, "-o", "output=/y"], "/x")
        == "pfedlora run a.yaml --superlink site -o output=/y --resume"
    )


def test_the_second_signal_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stoppable(signal.SIGTERM):
        with pytest.raises(Stopped, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_nohup_keeps_a_run_going_when_its_terminal_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(Stopped, match="SIGTERM"):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A connection `site`, and a `flwr` which keeps the run-config that it is handed and says that
    the run's hours were over."""
    (tmp_path / "config.toml").write_text("[superlink.site]\n")
    result = {
        "status": "stopped",
        "error": "stopped, since max-hours=1 are over",
        "stopped_by": "time",
        "rounds": 3,
    }
    answers = {
        "run": (
            f"cp $2/pyproject.toml {tmp_path}/submitted.toml; echo"
            f" '{json.dumps({'success': True, 'run-id': '7'})}'"
        ),
        "list": (
            f"echo '{json.dumps({'success': True, 'runs': [{'status': 'finished:completed'}]})}'"
        ),
        "log": f"echo '{RESULT_LINE}{json.dumps({'directory': '/x', 'result': result})}'",
    }
    tool = tmp_path / "flwr"
    tool.write_text(
        "#!/bin/sh\ncase $1 in\n"
        + "".join(f"{word}) {answer};;\n" for word, answer in answers.items())
        + "esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(flower, "tool", lambda name: str(tool))
    return tmp_path


def test_keys_with_which_masked_rounds_fail_are_named_before_a_run_is_submitted(
    site: Path, pfedlora: Call
) -> None:
    keys = ("output=/x", "secagg.enabled=true", "min-success=0.5", "round-timeout=20")
    words = [word for key in keys for word in ("-o", key)]
    _, out, _ = pfedlora("run", "--superlink", "site", *words)
    assert [line for line in out.splitlines() if line.startswith("warning: ")] == [
        "warning: min-success is 0.5; secagg.threshold needs 7 of 10 clients",
        "warning: round-timeout is 20, of which a stage of secure aggregation has 3 s; a message to"
        " a real node takes about 10 s",
    ]


@pytest.mark.slow
def test_more_rounds_and_a_limit_of_hours_go_through_a_connection(
    site: Path, pfedlora: Call
) -> None:
    keys = ("output=/x", "rounds=9", "max-hours=1")
    words = ["run", "--superlink", "site", "--resume", *(w for key in keys for w in ("-o", key))]
    code, _, err = pfedlora(*words)
    config = run_config(
        tomllib.loads((site / "submitted.toml").read_text())["tool"]["flwr"]["app"]["config"]
    )
    sent = config.execution
    assert (sent.resume, config.experiment.rounds, sent.max_hours, sent.output) == (
        True,
        9,
        1.0,
        "/x",
    )
    assert code == 75
    again = (
        "to continue: pfedlora run --superlink site -o output=/x -o rounds=9 -o max-hours=1"
        " --resume"
    )
    assert err.splitlines() == ["stopped, since max-hours=1 are over after round 3", again]
    assert "warning" not in pfedlora(*words, "-o", "data.class-names=a,b")[1], (
        "nodes may have tables"
    )
    assert "warning: data-path is not used" in pfedlora(*words, "-o", "data-path=/y")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (
            "finished:stopped",  # Flower kills the ServerApp
            130,
            "stopped through Flower\n"
            "to continue: pfedlora run --superlink site -o output=/x --resume\n",
        ),
        (
            "finished:failed",
            1,
            "failed: its server is gone and left no result; --resume continues it; it said last: "
            "round 1/9",
        ),
    ],
)
def test_a_run_without_a_result_says_why_and_that_it_can_be_continued(
    status: str, code: int, said: str, site: Path, pfedlora: Call
) -> None:
    tool = site / "flwr"
    told = tool.read_text().replace("finished:completed", status)
    tool.write_text(told.replace(RESULT_LINE, "pfedlora: round 1/9"))
    ended, _, err = pfedlora("run", "--superlink", "site", "-o", "output=/x")
    assert ended == code
    assert err.startswith(said)


def test_a_submission_that_is_not_taken_is_one_line_and_code_1(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> str:
        raise LaunchError(f"the command `{name}` is nowhere")

    monkeypatch.setattr(flower, "tool", nowhere)
    monkeypatch.setattr(submit.tempfile, "mkdtemp", lambda prefix: str(site))
    out, err = Console(quiet=True), Console(file=(said := io.StringIO()), width=200)
    assert submit.submit(run_config({}), "site", out, err, []) == 1
    assert said.getvalue() == "failed: the command `flwr` is nowhere\n"


def test_a_run_in_words() -> None:
    e = from_flat({"rounds": 10})
    sent = {"accuracy": 0.5, "evaluated": 1, "bytes_up": 1_000_000, "bytes_down": 500_000}
    rows = [
        {"round": r, "seconds": s, **sent}
        for r, s in enumerate([50.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    ]
    after = list(accumulate(rows, SoFar.after, initial=SoFar()))
    assert seconds_left(after[0], 10) is None
    assert seconds_left(after[1], 10) is None, "round 0 only evaluates"
    assert seconds_left(after[3], 10) == 8 * 5.5
    assert seconds_left(after[7], 10) == 4 * 2.0, "by the last five rounds"
    assert (
        round_line(e, after[7]) == "round 6/10 · about 8 s left · accuracy 0.5000 · 10.50 MB sent"
    )
    unknown = SoFar().after({**rows[0], "accuracy": 0.0, "evaluated": 0})  # type: ignore[typeddict-item]
    assert round_line(e, unknown) == "round 0/10 · 1.50 MB sent", "no accuracy is not one of 0"


def test_a_run_as_it_goes_on() -> None:
    now = 0.0
    guesses = []
    course = Course(from_flat({"rounds": 10}), lambda: guesses.append(1) or 600.0, lambda: now)
    row = {"round": 0, "seconds": 1.0, "accuracy": 0.1, "evaluated": 1}
    row |= {"bytes_up": 0, "bytes_down": 0}

    def look(
        phase: str | None, round: int = 0, done: int = 0, of: int = 4, rounds: int = -1
    ) -> tuple[str, float]:
        state = {"phase": phase, "round": round, "done": done, "of": of} if phase else None
        course.look(
            state,
            reduce(
                SoFar.after,
                [row | {"round": r, "seconds": 4.0} for r in range(rounds + 1)],
                SoFar(),
            ),
        )
        return course.words(), course.rounds

    assert course.words() == "starting: checks"
    assert look("superlink") == (
        "starting: the SuperLink · the rounds may take 10 min (a guess)",
        0,
    )
    assert look("submitting")[0].startswith("starting: `flwr run` · ")
    assert look(None)[0] == "starting: the server · the rounds may take 10 min (a guess)"
    assert look("connecting")[0].startswith("starting: Ray and its actors")
    now = 60.0
    assert (
        look("connecting", done=3)[0]
        == "starting: 3 of 4 clients are there · the rounds may take 10 min (a guess)"
    )
    assert len(guesses) == 1
    assert look("evaluating", 0, 2)[0].startswith("round 0/10 · evaluating: 2 of 4 clients")
    assert look("training", 1, 0, rounds=0) == (
        (
            "round 1/10 · 0 of 4 clients · the rounds may take 10 min (a guess) · accuracy 0.1000 ·"
            " 0.00 MB sent"
        ),
        0,
    )
    now = 65.0
    assert look("training", 1, 1, rounds=0) == (
        "round 1/10 · 1 of 4 clients · about 3 min left · accuracy 0.1000 · 0.00 MB sent",
        0.25,
    )
    now = 85.0
    assert look("evaluating", 1, 1, rounds=0)[0].startswith(
        "round 1/10 · evaluating: 1 of 4 clients · about 4 min left"
    )
    assert look("training", 2, 2, rounds=1) == (
        "round 2/10 · 2 of 4 clients · about 36 s left · accuracy 0.1000 · 0.00 MB sent",
        1.5,
    )
    now = 88.0
    assert look("evaluating", 2, 2, rounds=1) == (
        (
            "round 2/10 · evaluating: 2 of 4 clients · about 33 s left · accuracy 0.1000 · 0.00 MB"
            " sent"
        ),
        2,
    ), "the bar does not go back"
    assert course.words(70) == "round 2/10 · evaluating: 2 of 4 clients · about 33 s left", (
        "the least telling parts go first"
    )
    assert course.words(5) == "round 2/10 · evaluating: 2 of 4 clients"
    assert look("stopping", rounds=1)[0] == "stopping… · accuracy 0.1000 · 0.00 MB sent"
    assert look(None, rounds=10)[0] == "ending: Flower's processes · accuracy 0.1000 · 0.00 MB sent"


def test_a_short_guess_is_no_number() -> None:
    course = Course(from_flat({}), lambda: 2.0)
    course.look({"phase": "superlink"}, SoFar())
    assert (
        course.words() == "starting: the SuperLink · the rounds may take under a minute (a guess)"
    )


@pytest.mark.parametrize(
    ("number", "line", "code"),
    [("SIGINT", "stopped by the user", 130), ("SIGTERM", "stopped by SIGTERM", 75)],
)
def test_a_signal_before_the_run_begins_is_one_line(
    number: str, line: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(*args: object, **keys: object) -> None:
        os.kill(os.getpid(), signal.Signals[number])
        time.sleep(1)

    monkeypatch.setattr(run, "execute", execute)
    out, err = Console(quiet=True), Console(file=(said := io.StringIO()), width=200)
    assert run.run(run_config({"output": "/nowhere"}), out, err) == code
    assert said.getvalue() == f"{line} before the run started\n"


@pytest.mark.slow
def test_a_folder_named_like_rich_markup_is_printed_as_it_is(pfedlora: Call) -> None:
    words = ["-o", "rounds=1", "-o", "clients=2", "-o", "partition.kind=iid", "--engine", "local"]
    output = "runs/q[/w]"
    code, out, err = pfedlora("run", *words, "-o", "dataset=synthetic:60", "-o", f"output={output}")
    assert (code, err) == (0, "")
    assert f"everything is in {output}" in out
    target = "e [x].safetensors"
    words = ["--client", "0", "--format", "safetensors", "--output", target]
    code, out, _ = pfedlora("export", output, *words)
    assert code == 0
    assert f"{target} and its model card" in out
