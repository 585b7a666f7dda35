"""Going on with a run: what a call may change, and more rounds than the run had, to what it would
have been with them from the start."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.display import conclude
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.runs.begin import check_unchanged, continued, find, resumed
from pfedlora_flwr.runs.checkpoint import Checkpoints
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Call, Cli, Done, key_words, keys_in, run_locally

KEYS = keys_in(
    "clients=4 participation=0.5 rounds=6 evaluate-every=4 batch-size=8 lr=0.03 "
    "partition.kind=iid dataset=synthetic:200 models=tests.methods.narrow:Narrow"
)
# a report on the wire holds seconds as text
TIMES = {
    "seconds",
    "server_seconds",
    "training_seconds",
    "evaluation_seconds",
    "wire_up",
    "ended",
}


def timeless(value: Any) -> Any:
    """Without whatever is a time: of the rest every field must be equal."""
    if isinstance(value, dict):
        return {name: timeless(inner) for name, inner in value.items() if name not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def facts(done: Done) -> list[Any]:
    return [
        timeless(found)
        for found in (done.result, done.rows("rounds.jsonl"), done.rows("clients.jsonl"))
    ]


def extend(output: Path, rounds: int, **keys: object) -> tuple[Done, str]:
    """What `--resume -o rounds=ROUNDS` does, and what it says."""
    options = {"resume": True, "rounds": rounds, **keys}
    wanted, unused = resumed(RunDirectory(output), {}, options, "")
    assert not unused
    said: list[str] = []
    result = execute(
        config.located(wanted, output), lambda state, rounds: None, said.append, engine="local"
    )
    return (
        Done(0 if result["status"] == "completed" else 1, "", result["error"] or "", output),
        "".join(f"{line}\n" for line in said),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last", "keys"),
    [
        (6, 8, {}),  # round 6 was evaluated only for being the last
        # round 3 is evaluated in any case
        (3, 4, {"evaluate-every": 3, "method": "fedkd", "fedkd.energy-end": 0.95}),
        (5, 6, {"evaluate-initial": False, "method": "fedproto"}),
        (1, 2, {"evaluate-initial": False, "method": "fml"}),  # with further predictors
        (5, 7, {}),  # evaluated for being the last once more
    ],
)
def test_an_extended_run_is_what_it_would_have_been_from_the_start(
    tmp_path: Path, first: int, last: int, keys: dict[str, object]
) -> None:
    keys = KEYS | {"target-accuracy": 0.2, "rounds": first} | keys
    whole = run_locally(tmp_path / "a", keys | {"rounds": last})
    short = run_locally(tmp_path / "b", keys)
    assert facts(short) != facts(whole)
    extended, said = extend(tmp_path / "b", last)
    assert (whole.code, extended.code) == (0, 0), extended.stderr
    assert facts(extended) == facts(whole)
    assert f"rounds {first + 1} to {last} (it was to end at {first})" in said
    about = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())["about"]
    assert [(entry["rounds"], entry["after-round"]) for entry in about["history"]] == [
        (first, 0),
        (last, first),
    ]
    assert about["fingerprint"] == extended.result["fingerprint"]
    assert {entry["git-commit"] for entry in about["history"]} == {about["git-commit"]}
    evaluations = []
    for run in (whole, extended):
        state = RunDirectory(run.output).checkpoints.load()
        assert state is not None
        evaluations.append((state.counts, state.stale, state.other_accuracies, state.before_last))
    assert evaluations[0] == evaluations[1]
    visited_last = RunDirectory(tmp_path / "b").client_store(
        extended.rows("clients.jsonl")[-1]["client"]
    )
    assert visited_last.about()["experiment"]["rounds"] == last


@pytest.mark.slow
def test_a_run_killed_as_it_takes_its_last_evaluation_back_does_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_locally(tmp_path / "a", KEYS | {"rounds": 3})
    output = run_locally(tmp_path / "b", KEYS | {"rounds": 2}).output
    RunDirectory(output).trim()  # as `compare` does
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", lambda self, state: 1 / 0)
        killed, _ = extend(output, 3)
    assert killed.code == 1
    extended, _ = extend(output, 3)
    assert facts(extended) == facts(whole)


@pytest.mark.slow
def test_max_hours_stop_after_a_round_and_the_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 3}
    whole = run_locally(tmp_path / "a", keys)
    stopped = run_locally(tmp_path / "b", keys | {"max-hours": 1e-9})
    assert (stopped.result["status"], stopped.result["stopped_by"], stopped.result["rounds"]) == (
        "stopped",
        "time",
        1,
    )
    assert stopped.stderr == "stopped, since max-hours=1e-09 are over"
    assert conclude(stopped.result, "", Console(quiet=True), Console(quiet=True), "") == 75
    wanted, _ = resumed(RunDirectory(stopped.output), {}, {"resume": True, "max-hours": 0}, "")
    execute(
        wanted.executed(output=str(stopped.output)),
        lambda state, rounds: None,
        lambda _: None,
        engine="local",
    )
    assert facts(stopped) == facts(whole)
    saved = yaml.safe_load((stopped.output / "config.yaml").read_text())
    assert (saved["max-hours"], saved["resume"]) == (0, False)
    history = saved["about"]["history"]
    assert [(entry["rounds"], entry["after-round"]) for entry in history] == [(3, 0), (3, 1)]
    assert [entry.get("was") for entry in history] == [None, {"max-hours": 1e-9}]


@pytest.mark.slow
def test_sigterm_stops_at_once_with_75_and_says_the_command_that_continues(cli: Cli) -> None:
    process = cli.start(
        "run",
        *key_words(KEYS),
        "-o",
        "rounds=900",
        "--engine",
        "local",
    )
    assert process.stdout is not None
    while "round 1/900" not in process.stdout.readline():
        assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    while "stopping…" not in process.stdout.readline():
        assert process.poll() is None
    assert time.monotonic() - sent < 1.5, "0.3 s where the machine has nothing else to do"
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    first, second = stderr.splitlines()
    assert first.startswith("stopped by SIGTERM after round ")
    assert second == "to continue: pfedlora run --resume -o output=run --engine local"
    assert Done(0, "", "", cli.folder / "run").result["stopped_by"] == "system"


@pytest.mark.slow
def test_a_run_of_nodes_does_not_go_on_with_clients_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real nodes keep their models: what goes on here without any of them would train others'."""
    keys = KEYS | {"rounds": 3, "participation": 1.0, "max-hours": 1e-6}
    run = RunDirectory(run_locally(tmp_path / "run", keys).output)
    before = run.checkpoints.rounds(), run.last_round()
    assert before[1] < 3
    shutil.move(run.clients, tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"does not hold the models of . clients.*superlink"):
        extend(run.path, 3)
    assert (run.checkpoints.rounds(), run.last_round()) == before
    assert continued(run.run_config()).execution.overwrite  # a comparison's begins anew

    def damaged(*_: object, **__: object) -> None:
        raise UserError("no checkpoint can be read")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "load", damaged)
        assert continued(run.run_config()).execution.resume  # which says so, and stops no other
    shutil.move(tmp_path / "elsewhere", run.clients)
    assert extend(run.path, 3, **{"max-hours": 0})[0].result["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["mean", "none"])
def test_a_simulation_goes_on_from_whole_models_alone(tmp_path: Path, sharing: str) -> None:
    keys = KEYS | {"participation": 1.0, "rounds": 3, "sharing": sharing}
    whole = run_locally(tmp_path / "one", keys | {"rounds": 4})
    run = RunDirectory(run_locally(tmp_path / "run", keys).output)
    store = run.client_store(1) if sharing == "mean" else run.server_store(1)
    path, before = store.path(3), run.result_file.read_bytes()
    held = path.read_bytes()
    for damaged, why in (
        (held[:-1] + bytes([held[-1] ^ 1]), "is damaged: its checksum differs"),
        (held[:1000], "cannot be read: "),
        (store.path(2).read_bytes(), "is not the one that the server knows"),
    ):
        path.write_bytes(damaged)
        MODELS._held.clear()
        newest = run.checkpoints.paths()[-1]
        with pytest.raises(UserError) as told:
            extend(run.path, 4)
        assert f"the models of 1 client after round 3, from which more rounds would go on ({path} "
        assert why in str(told.value)
        assert f"or remove {newest} to go on after round 2, or begin" in str(told.value)
    assert run.result_file.read_bytes() == before
    assert continued(run.run_config()).execution.resume  # a comparison's says so, too
    for client in run.clients.iterdir():
        run.client_store(int(client.name)).path(3).unlink()
    extended = config.run_config(run.run_config().flat() | {"rounds": 4, "output": str(run.path)})
    assert continued(extended).execution.overwrite  # none is there: it begins anew
    newest.unlink()
    done, _ = extend(run.path, 4)
    assert facts(done) == facts(whole)


@pytest.mark.slow
def test_who_leaves_needs_no_model(tmp_path: Path) -> None:
    run = RunDirectory(run_locally(tmp_path / "run", KEYS | {"rounds": 1}).output)
    gone, *_ = run.clients.iterdir()
    shutil.rmtree(gone)
    done, _ = extend(run.path, 2, **{"clients-left": gone.name})
    assert done.result["status"] == "completed"


@pytest.mark.slow
def test_what_cannot_be_extended_is_one_line(tmp_path: Path) -> None:
    output = run_locally(tmp_path / "run", KEYS | {"rounds": 2}).output
    before = (output / "config.yaml").read_text()
    with pytest.raises(
        UserError, match=r"rounds is 1; the run in .* ends at 2: it can be extended, not shortened"
    ):
        extend(output, 1)
    with pytest.raises(
        UserError,
        match=r"holds a different Experiment \(lr: 0.03 → 0.5\); resume it with its own keys",
    ):
        extend(output, 3, lr=0.5)
    assert (output / "config.yaml").read_text() == before
    dropped = run_locally(tmp_path / "dropped", KEYS | {"rounds": 2}).output
    RunDirectory(dropped).drop_models()
    with pytest.raises(UserError, match=r"does not hold the models of . clients after round 2"):
        extend(dropped, 3)
    for keys, whose in (
        ({"method": "fedkd"}, "method fedkd"),
        ({"lr-schedule": "cosine"}, "lr-schedule=cosine"),
    ):
        scheduled = run_locally(tmp_path / whose, KEYS | keys | {"rounds": 1}).output
        with pytest.raises(
            UserError,
            match=(
                f"with {whose} each round depends on how many there are: a run of 1 cannot be"
                " extended"
            ),
        ):
            extend(scheduled, 2)


@pytest.mark.slow
def test_flowers_run_config_extends_by_more_rounds(tmp_path: Path) -> None:
    run = RunDirectory(run_locally(tmp_path / "run", KEYS | {"rounds": 2}).output)
    resume = KEYS | {"output": str(run.path), "resume": True}
    find(run, config.run_config(resume | {"rounds": 2})).check()
    find(run, config.run_config(resume | {"rounds": 3})).check()
    with pytest.raises(UserError, match="it can be extended, not shortened"):
        find(run, config.run_config(resume | {"rounds": 1})).check()
    with pytest.raises(
        UserError, match=r"\(lr: 0.03 → 0.5\); resume it with its own keys; only more rounds"
    ):
        find(run, config.run_config(resume | {"rounds": 3, "lr": 0.5})).check()


@pytest.mark.slow
def test_a_client_that_has_left_is_no_refused_node_in_a_simulation(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 2, "clients-left": "1:0"}
    for more, left in (({}, "1:0"), ({"overwrite": True}, "1:0"), ({"overwrite": True}, "0")):
        found = run_locally(tmp_path / "run", keys | more | {"clients-left": left}).result
        assert (found["status"], found["refused"]) == ("completed", 0)
        assert [*found["left"]] == ["0"]


def test_a_folder_of_lora_may_be_named_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = from_flat({"train": "lora", "lora.init": f"folder:{tmp_path / 'lora'}"})
    check_unchanged(saved, {"lora.init": "folder:lora"}, tmp_path)
    with pytest.raises(UserError, match=r"lora\.init: .*other"):
        check_unchanged(saved, {"lora.init": "folder:other"}, tmp_path)


@pytest.mark.slow
def test_the_command_names_what_it_does_not_use(tmp_path: Path, pfedlora: Call) -> None:
    conf = keys_in(
        "clients=3 rounds=1 partition.kind=iid dataset=synthetic:100 models=cnn5 mu=0.5 "
        "actors=1 fml.alpha=0.5"
    )

    def write(**changed: object) -> None:
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(conf | changed))

    def call(*words: str) -> tuple[int, str, str]:
        return pfedlora("run", "--quiet", "--engine", "local", *words)

    write()
    assert call("a.yaml")[0] == 0
    write(mu=0.9, lr=0.02)
    code, _, err = call("a.yaml", "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert (
        "holds a different Experiment (lr: 0.01 → 0.02; mu: 0.5 → 0.9); resume it with its own"
        " keys: without CONF, by output=runs/a" in err
    )
    assert "(mu: 0.5 → 0.7)" in call("--resume", "-o", "output=runs/a", "-o", "mu=0.7")[2]
    write(rounds=7, actors=2, **{"fml.alpha": 0.7})
    code, out, _ = call("a.yaml", "--resume")
    assert code == 0
    assert "a.yaml says rounds=7; this run ends at 1; rounds=7 extends it\n" in out
    assert "runs/a is completed: round 1 was its last" in out
    assert "mean test accuracy" in out
    code, out, _ = call("--resume", "-o", "output=runs/a", "-o", "rounds=2")
    assert code == 0
    assert "continuing pfedlora on synthetic:100 in " in out
    assert "rounds 2 to 2 (it was to end at 1)" in out
    assert RunDirectory(tmp_path / "runs" / "a").experiment().rounds == 2
