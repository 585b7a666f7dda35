"""A client that lies about its samples or its update, beside honest ones that must not pay for
it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from benchmarks import attacks
from benchmarks.results.page import RESULTS
from pfedlora_flwr.config import run_config
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.federation.chain import Chain
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.link import Server
from pfedlora_flwr.federation.links import Outliers
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Upload
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from tests.federation.malice import FLIPPED, simulate


class GivenUploads:
    """A chain of a run that trains nothing: what is uploaded is given."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        config = run_config({"method": "fedavg", "models": "cnn5"} | keys)
        self.experiment = config.experiment
        self.method = Setup(self.experiment).method
        self.state = ServerState(self.method.state_init(0))
        self.server = Server(config.execution, RunDirectory(folder), self.state)
        self.chain = Chain(self.experiment, self.method, self.server)

    def uploads(self, *values: float, samples: list[int] | None = None) -> dict[int, Upload]:
        """Of each client the state with all its elements set to a value."""
        return {
            client: Upload(
                {name: torch.full_like(t, value) for name, t in self.state.tensors.items()},
                samples[client] if samples else 10,
            )
            for client, value in enumerate(values)
        }

    def merged(self, uploads: dict[int, Upload], number: int = 1) -> tuple[float, Round]:
        """An element of what the uploads make, and the round."""
        round = Round(number, sorted(uploads), Clock())
        after = self.chain.aggregate(uploads, self.state.tensors, round)
        return float(next(iter(after.values())).flatten()[0]), round


@pytest.mark.parametrize(
    ("rule", "expected"), [("median", 3.0), ("trimmed-mean", 3.0), ("krum", 3.0), ("mean", -16.0)]
)
def test_a_rule_takes_the_place_of_the_mean_and_no_n_k_counts(
    tmp_path: Path, rule: str, expected: float
) -> None:
    """Krum: of 2.0, 2.9, 3.0, 4.1 and the lie, 3.0 is nearest to its two nearest."""
    run = GivenUploads(tmp_path, aggregation=rule, clients=5)
    values = (2.9, 3.0, 3.1, 3.05, -92.05)
    found, _ = run.merged(run.uploads(*values, samples=[10, 10, 10, 10, 10]))
    assert found == pytest.approx(expected, abs=0.06)
    if rule != "mean":
        again, _ = run.merged(run.uploads(*values, samples=[1, 20, 3, 40, 10**6]))
        assert again == found


def test_a_claim_counts_up_to_the_bound_and_as_the_first_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = GivenUploads(tmp_path, **{"max-weight": 3, "clients": 4})
    found, round = run.merged(run.uploads(0, 0, 0, 1, samples=[8, 10, 12, 10**6]))
    assert found == pytest.approx(30 / 60)
    assert round.weights == {3: 30}
    assert "these clients' samples count less: 3 as 30 for 1000000" in caplog.text
    found, round = run.merged(run.uploads(1, 0, 0, 0, samples=[24, 10, 12, 30]), 2)
    assert found == pytest.approx(8 / 60)
    assert round.weights == {0: 8}
    assert "client 0 claims 24 samples, and claimed 8 before" in caplog.text
    assert ServerState.from_json(
        json.loads(json.dumps(run.state.to_json())), run.state.tensors
    ).claims == {0: 8, 1: 10, 2: 12, 3: 10**6}


def test_a_claim_of_one_class_is_bounded_by_the_classs_holders(tmp_path: Path) -> None:
    run = GivenUploads(tmp_path, method="fedproto", **{"max-weight": 2, "clients": 3})
    width = run.state.tensors["means"].shape[1]
    uploads = {
        client: Upload(
            {
                "classes": torch.tensor([0, 1]),
                "means": torch.zeros(2, width),
                "counts": torch.tensor([count, 30 - count]),
            },
            30,
        )
        for client, count in enumerate([5, 6, 29])
    }
    after = run.chain.aggregate(uploads, run.state.tensors, Round(1, [0, 1, 2], Clock()))
    assert after["counts"].view(3, 2).tolist() == [[5, 25], [6, 24], [12, 1]]


@pytest.mark.parametrize(
    ("last", "sizes", "refused"),
    [
        ([], [1, 1.1, 0.9, 1, 1e3], [4]),
        ([], [1, 2, 3, 9, 9.5], []),
        ([], [1, 1, 1, 1, float("nan")], [4]),
        ([], [0, 0, 0, 1, 1.1], []),  # three send back what they were sent
        ([], [1e-6, 1e-6, 1e-6, 1, 1.1], []),
        ([1.0], [1e-4, 1e-4, 1e-4, 1, 30], [4]),
        ([1.0, 1.2, 0.9], [0.05, 0.05, 0.05, 1, 1.1], []),
        ([1.0], [1e-6, 1e-6, 1e-6, 1, 1e4], [4]),
        ([1.0], [20, 20, 21, 20, 22], []),  # all grow at once
    ],
)
def test_an_outlier_is_one_of_this_round_and_of_the_last(
    tmp_path: Path, last: list[float], sizes: list[float], refused: list[int]
) -> None:
    run = GivenUploads(tmp_path, **{"clip-norm-factor": 10})
    run.state.sizes = list(last)
    uploads = run.uploads(*sizes)
    assert sorted(Outliers(run.experiment, run.method, run.server).refused(uploads)) == refused
    assert len(run.state.sizes) <= 5
    assert min(run.state.sizes, default=1.0) > 0.04


def test_a_round_with_too_few_for_the_rule_does_not_count(tmp_path: Path) -> None:
    run = GivenUploads(tmp_path, aggregation="krum", clients=5)
    four, round = run.uploads(1, 1, 1, 1), Round(1, list(range(5)), Clock())
    round.fail(4, "no answer")
    assert run.chain.too_few(four, round) == (
        "4 clients succeeded, and aggregation=krum needs 5 for 1 liars among them"
    )
    round.fail(4, "refused: its update is 91 times as large as the median one")
    assert run.chain.too_few(four, round) == ""


@pytest.mark.parametrize(
    "method", [n for n in registry.NAMES if registry.find(n).averages or n in ("fedproto", "fd")]
)
def test_every_method_that_averages_takes_a_rule(method: str) -> None:
    trained = {"train": "lora"} if registry.find(method).shares_lora else {}
    model = {"models": "timm:test_vit" if trained else "cnn5"}
    keys = {"method": method, "aggregation": "median"} | trained | model
    assert run_config(keys).experiment.aggregation == "median"


DIGITS = {"partition.kind": "iid"}


def honest_mean(folder: Path, sorts: dict[int, str], **keys: Any) -> float:
    """The mean accuracy of the clients that are in no `sorts`; each is admitted in every round."""
    output = simulate(folder, sorts, **attacks.TEN | DIGITS | keys)
    rows: list[Any] = [r for r in RunDirectory(output).visits() if r["client"] not in sorts]
    assert all(row["status"] == "ok" for row in rows)
    return fmean(row["accuracy"] for row in rows if "accuracy" in row)


def mean_of(accuracies: str, liars: int) -> float:
    return fmean(map(float, accuracies.split()[liars:]))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "lie"), [("trimmed mean", attacks.CLAIM), ("mean", FLIPPED)])
def test_the_page_of_attacks_has_what_a_federation_with_two_liars_comes_to(
    rule: str, lie: str
) -> None:
    """By the real server and clients; another processor may round otherwise."""
    cell = dict(zip(attacks.CELL, ("fedavg", rule, lie, "2", "10", "0"), strict=True))
    with (RESULTS / "attacks" / "runs.csv").open(encoding="utf-8") as file:
        [row] = [row for row in csv.DictReader(file) if cell.items() <= row.items()]
    found, refused, _, ended = attacks.told(lie, 2, attacks.keys_of("fedavg", rule, 10, 0))
    assert (refused, ended) == (0, "")
    assert mean_of(found, 2) == pytest.approx(mean_of(row["accuracies"], 2), abs=0.03)
    if lie == FLIPPED:
        assert max(map(float, found.split()[:2])) < 0.2, "they have learned the reverse"


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("pfedlora", marks=pytest.mark.methods),
    ],
)
def test_one_liar_of_ten_costs_the_honest_less_than_two_points(tmp_path: Path, method: str) -> None:
    clean = honest_mean(tmp_path / "clean", {}, method=method)
    liar = {0: "turned, ninety times, a million samples"}
    keys = {"method": method, "aggregation": "trimmed-mean"}
    assert honest_mean(tmp_path / "lie", liar, **keys) > clean - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedkd", "pfedlora_plus", "fedproto"])
def test_idle_clients_make_no_outliers_of_those_that_train(tmp_path: Path, method: str) -> None:
    """Those that send back what they were sent: by given uploads, above."""
    idle = dict.fromkeys(range(3), "a millionth")
    keys = {"method": method, "clients": 5, "rounds": 2, "local-epochs": 1, "min-success": 0.4}
    assert honest_mean(tmp_path, idle, **keys | {"evaluate-every": 1}) > 0


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_bits_of_one_that_did_not_stop(tmp_path: Path) -> None:
    keys = {"method": "fedproto", "clients": 4, "max-weight": 1, "models": attacks.KEYS["models"]}
    straight = simulate(tmp_path / "straight", rounds=3, **keys)
    stopped = simulate(tmp_path / "stopped", rounds=2, **keys)
    simulate(tmp_path / "stopped", rounds=3, resume=True, **keys)
    states = [RunDirectory(output).checkpoints.load() for output in (straight, stopped)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].sizes == states[1].sizes
    assert len(states[0].sizes) == 3
    assert states[0].claims == states[1].claims
    assert len(states[0].claims) == 4
    for name, tensor in states[0].tensors.items():
        assert torch.equal(tensor, states[1].tensors[name])
