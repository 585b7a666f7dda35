"""Lanes: visits that interleave, each to the bits that it has alone."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from pfedlora_flwr import server_app
from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError, permissions
from pfedlora_flwr.launch.resources import fitting_engine
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.lanes import Lanes, fitting, turn, worker
from tests.alike import ends_alike
from tests.conftest import Call, Cli, Done, key_words, keys_in, run_locally
from tests.plain import ANY_MODEL, SUMS, of_each

CPU = torch.device("cpu")
DROPPED = "tests.models.modules:Normalised"
"""With dropout, which draws from torch's global generator, and batch normalisation."""
KEYS: dict[str, Any] = keys_in(
    "dataset=synthetic:120 clients=4 partition.kind=iid rounds=2 batch-size=8 "
    "evaluate-initial=false"
)


KINDS = "pfedlora fedavg fedrep apfl fedkd fedtgp fedncm"
"""Methods of one phase and of several, with one model and with two, that also train at the server,
and that train nothing."""


def vectors(folder: Path) -> str:
    """Rows of nine numbers, of three classes."""
    draws = np.random.default_rng(0)
    lines = [
        f"{','.join(f'{x:.3f}' for x in draws.normal(i % 3, 1, 9))},{i % 3}" for i in range(96)
    ]
    file = folder / "rows.csv"
    file.write_text("\n".join([",".join("abcdefghi") + ",label", *lines]))
    return f"csv:{file}"


def bits(done: Done) -> list[Any]:
    """All that must not depend on lanes."""
    assert done.code == 0, done.stderr
    visits = done.rows("clients.jsonl")
    told = ("client", "round", "loss", "losses", "flops", "model_sha256")
    return [
        *(done.result[name] for name in ("models_sha256", "shared_sha256", "accuracy", "flops")),
        [{name: visit.get(name) for name in told} for visit in visits],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", of_each(ANY_MODEL, KINDS))
def test_lanes_come_to_the_bits_of_one(method: str, tmp_path: Path) -> None:
    keys = KEYS | {"method": method, "dataset": vectors(tmp_path)}
    keys |= {"models": DROPPED if registry.find(method).one_model else f"mlp2,{DROPPED}"}
    if method in SUMS:  # which train nothing, and want one frozen encoder
        keys |= {"models": "mlp2", "initial-models": "architecture"}
    if method == "pfedes":  # which takes images alone
        keys |= {"models": "tests.models.modules:Dropped,cnn5", "dataset": KEYS["dataset"]}
    small = {"fedmrl": {"fedmrl.representation-dim": 8}, "fedtgp": {"fedtgp.server-epochs": 5}}
    keys |= small.get(method, {})
    numbers = (3, 2, 5) if method == "pfedlora" else (3,)
    one, *others = (
        bits(run_locally(tmp_path / f"{n}", keys | {"lanes": n})) for n in (1, *numbers)
    )
    assert others == [one] * len(numbers)


@pytest.mark.slow
def test_a_client_that_raises_ends_its_own_visit_alone(tmp_path: Path) -> None:
    keys = KEYS | {"method": "tests.failing:ClientRaises", "models": "cnn5", "rounds": 1}
    keys |= {"min-success": 0.5}
    one, three = (run_locally(tmp_path / f"{n}", keys | {"lanes": n}) for n in (1, 3))
    assert bits(one) == bits(three)
    assert [row["refused"] for row in three.rows("rounds.jsonl")] == [[2]]
    assert [row["workers"] for row in three.rows("rounds.jsonl")] == [3]
    for done in (one, three):
        assert "the disk of client 2 is on fire" in (done.output / "logs" / "run.log").read_text()


class Unsettled(PFedLoRA):
    """Changes settings of its process and thread while it trains."""

    def local_update(self, model: Any, received: Any, data: Any, visit: Any) -> Any:
        if visit.client % 2:
            torch.set_float32_matmul_precision("medium")
            torch.use_deterministic_algorithms(True)
            np.seterr(all="raise")
        upload = super().local_update(model, received, data, visit)
        now = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        assert now == (("medium", True) if visit.client % 2 else ("highest", False))
        return upload


@pytest.mark.slow
def test_settings_of_the_process_stay_in_their_lane(tmp_path: Path) -> None:
    keys = KEYS | {"method": "tests.training.test_lanes:Unsettled", "models": "cnn5", "rounds": 1}
    before = torch.get_float32_matmul_precision(), np.geterr()
    bits(run_locally(tmp_path / "run", keys | {"lanes": 3}))
    assert before == (torch.get_float32_matmul_precision(), np.geterr())


@pytest.mark.slow
def test_a_run_in_lanes_that_is_killed_and_resumed_ends_as_one_in_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS | {"method": "pfedlora", "models": "cnn5,cnn4", "participation": 0.5}
    ends_alike("lanes", keys, cli, tmp_path, monkeypatch, lanes=3)


@pytest.mark.slow
def test_where_lanes_are_refused_and_what_is_said(tmp_path: Path, pfedlora: Call) -> None:
    words = key_words(KEYS)
    for given in ("3", "auto"):
        code, _, said = pfedlora("run", "--dry-run", *words, "-o", f"lanes={given}")
        assert code == 2
        assert f"lanes is {given if given == '3' else repr(given)}; allowed: 1 through" in said
        assert "1 through Flower, which gives a process one client at a time" in said
    local = ("run", "--dry-run", "--engine", "local", *words)
    for given, what in (("3", "they take turns"), ("auto", "auto is 1")):
        code, said, _ = pfedlora(*local, "-o", f"lanes={given}", "-o", "device=cpu")
        assert code == 0
        assert f"warning: lanes gain nothing on a CPU: {what}" in said
    assert "lanes is 33; allowed: auto, or an integer" in pfedlora(*local, "-o", "lanes=33")[2]


def test_a_server_whose_clients_are_elsewhere_refuses_lanes(tmp_path: Path) -> None:
    """As of `flwr run`, or of real nodes: none of its grid is asked anything."""
    run = dict(run_config({"lanes": 2, "output": str(tmp_path / "run")}).flat())
    grid, context = cast(Grid, object()), Context(1, 0, {}, RecordDict(), run)
    with pytest.raises(UserError, match="lanes is 2; allowed: 1 through Flower"):
        server_app.serve(grid, context)
    assert not (tmp_path / "run").exists()


def test_a_comparison_in_lanes_takes_the_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fitting_engine([run_config({})]) == "flower"
    for lanes in (4, "auto"):
        assert fitting_engine([run_config({"lanes": lanes})]) == "local"
        assert fitting_engine([run_config({"lanes": lanes}), run_config({})]) == "flower"


def steps(name: str, count: int, log: list[str]) -> str:
    for i in range(count):
        log.append(f"{name}{i}")
        turn()
    return name


def test_lanes_take_turns_and_the_next_call_when_theirs_has_ended() -> None:
    log: list[str] = []
    calls = [("a", 3), ("b", 1), ("c", 2)]
    made = list(Lanes(2, CPU).each(lambda call: steps(*call, log), calls))
    assert log == ["a0", "b0", "a1", "a2", "c0", "c1"]
    assert made == [(1, "b"), (0, "a"), (2, "c")]
    log.clear()
    assert list(Lanes(1, CPU).each(lambda call: steps(*call, log), calls)) == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
    ]
    assert log == ["a0", "a1", "a2", "b0", "c0", "c1"]
    assert list(Lanes(None, CPU).each(str, [])) == list(Lanes(3, CPU).each(str, [])) == []


def test_a_lane_is_called_in_the_callers_context() -> None:
    with permissions.held(permissions.Permissions()):
        found = dict(Lanes(2, CPU).each(lambda _: permissions.own_machine(), range(2)))
    assert found == {0: False, 1: False}


def test_a_lane_has_generators_and_names_of_its_own() -> None:
    def draws(seed: int) -> list[float]:
        with seeded(seed):
            found = []
            for _ in range(3):
                found += [float(torch.rand(())), random.random(), float(np.random.rand())]
                turn()
        return found

    def unseeded(_: int) -> tuple[float, float, float, str]:
        turn()
        return float(torch.rand(())), random.random(), float(np.random.rand()), worker()

    torch.manual_seed(7)
    expected = float(torch.rand(()))
    torch.manual_seed(7)
    apart = dict(Lanes(3, CPU).each(draws, [1, 2, 1]))
    assert apart == {0: draws(1), 1: draws(2), 2: draws(1)}
    free = [found for _, found in Lanes(3, CPU).each(unseeded, range(3))]
    assert all(len({*column}) == 3 for column in zip(*free, strict=True))
    assert float(torch.rand(())) == expected, "the caller goes on as if nothing had drawn"


def test_what_a_call_raises_comes_to_the_caller_and_ends_the_others() -> None:
    log: list[str] = []

    def call(at: int) -> int:
        try:
            turn()
            if at == 1:
                raise SystemExit(3)
            for _ in range(100):
                turn()
        finally:
            log.append(f"{at} ended")
        return at

    threads = threading.active_count()
    with pytest.raises(SystemExit):
        list(Lanes(3, CPU).each(call, range(5)))
    assert sorted(log) == ["0 ended", "1 ended", "2 ended"]
    with closing(Lanes(2, CPU).each(lambda at: at, range(5))) as answers:
        assert next(answers) == (0, 0)
    assert threading.active_count() == threads


def test_ctrl_c_stops_the_lanes() -> None:
    """It comes to the main thread, which waits for the lanes."""
    begun = threading.Event()

    def call(at: int) -> None:
        while True:
            begun.set()
            time.sleep(0.001)
            turn()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threads = threading.active_count()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(Lanes(2, CPU).each(call, range(4)))
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("free", "took", "lanes"),
    [(0, 1, 1), (-(2**30), 1, 1), (2**30, 2**20, 2), (2**40, 2**20, 10), (2**33, 2**30, 4)],
)
def test_auto_takes_what_the_memory_holds(free: int, took: int, lanes: int) -> None:
    assert fitting(free, took) == lanes
