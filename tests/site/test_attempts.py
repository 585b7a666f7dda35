"""What a run tries to get out of a node by its keys alone, under the policies to copy; docs/site.md
has the table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from pfedlora_flwr import client_app
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.site.egress import NEUTRAL
from pfedlora_flwr.site.policy import Policy, held
from pfedlora_flwr.training.metrics import BESIDE_ACCURACY
from tests.plain import Plain
from tests.site.test_policy import BASE, DP, MASKS, Node, instruction

DOCS = Path(__file__).parents[2] / "docs" / "policies"
MANY = {"dataset": "synthetic:2530", "models": "cnn5", "setting": "homogeneous"}
SLOW = {"optimizer": "sgd", "lr": 1e-9, "momentum": 0.0}
"""Next to no learning: what moves a weight is `weight-decay` alone."""


def node(folder: Path, policy: str, **changes: str) -> Node:
    """A node under a policy to copy, at any hour."""
    text = (DOCS / f"{policy}.toml").read_text().replace('hours = "19-6"', "")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return Node(folder, text)


@pytest.fixture(autouse=True)
def run() -> None:
    """Of which messages are."""
    LocalGrid(client_app.app, [{}], {})


def answer(node: Node, keys: dict[str, Any], message: Message) -> Message:
    return client_app.app(message, Context(1, 2, node.config, RecordDict(), BASE | keys))


def visit(node: Node, keys: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What a visit of client 0 sends, by name, beside what it received; what it tells; and n_k."""
    state = Plain(BASE | keys).state
    reply = answer(node, keys, wire.train_message(2, 1, state, instruction(names=[*state]), 60))
    found = wire.fit_answer(reply)
    names = json.loads(str(found.metrics["names"]))
    sent = [wire.decode(blob, 2**30) for blob in found.parameters.tensors]
    return (
        {n: (state[n].numpy(), t) for n, t in zip(names, sent, strict=True)},
        found.metrics,
        (found.num_examples),
    )


def training_samples(keys: dict[str, Any]) -> int:
    return len(Site.find(Plain(BASE | keys).experiment, 0, {}).split.train)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "changes", "told"),
    [
        ("research", {}, lambda n: n),
        ("plant", {"cap = 500": "cap = 100"}, lambda n: min(n, 100)),
    ],
)
def test_the_steps_of_a_visit_tell_no_other_n_k_than_the_site_does(
    policy: str, changes: dict[str, str], told: Any, tmp_path: Path
) -> None:
    keys = MANY | SLOW | {"weight-decay": 1e6, "batch-size": 1, "dataset": "synthetic:600"}
    sent, _, n = visit(node(tmp_path, policy, **changes), keys)
    before, after = next(pair for pair in sent.values() if abs(pair[0]).max() > 0)
    largest = abs(before).argmax()
    steps = math.log(after.flat[largest] / before.flat[largest]) / math.log(1 - 1e-3)
    assert round(steps) == n == told(training_samples(keys)), "weight decay counts the steps"


@pytest.mark.slow
def test_a_masked_weight_is_what_the_site_tells_so_no_bound_on_it_finds_n_k(tmp_path: Path) -> None:
    """`secagg.max-samples` refuses by the weight, and sums over other clients differ by it."""
    keys = MANY | MASKS | {"clients": 5, "secagg.max-samples": 10_000, "method": "fedavg"}
    home, e = node(tmp_path, "hospital").config, Plain(BASE | keys).experiment
    state = Plain(BASE | keys).state
    told = instruction(names=[*state], evaluate=True)
    with held(Policy.of_node(home)):
        _, weight, said = PersonalisedClient(e, home).fit(wire.to_arrays(state), told)
    assert "error" not in said
    assert weight == training_samples(keys) // 10 * 10 != training_samples(keys)
    assert (said["test"], said["validation"]) == (50, 50)


FIELDS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "scores by class": (
        "plant",
        {"verdict.score": "sensitivity@7", "scores.by-class": True},
        {"ece", "log_loss", "validation_ece", "validation_log_loss"},
    ),
    "scores of large classes": (
        "research",
        {"scores.by-class": True},
        {part + score for part in ("", "validation_") for score in BESIDE_ACCURACY},
    ),
    "scores of small classes": (
        "research",
        {"scores.by-class": True, "partition.kind": "dirichlet"},
        {"ece", "log_loss", "validation_ece", "validation_log_loss"},
    ),
    "log-losses": ("plant-without-losses", {}, {"ece", "validation_ece"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_scores_from_which_a_small_class_or_a_loss_follows_do_not_leave(
    name: str, tmp_path: Path
) -> None:
    policy, keys, left = FIELDS[name]
    changes = {"cap = 500": "cap = 500\nlosses = false"} if "-" in policy else {}
    _, said, _ = visit(node(tmp_path, policy.partition("-")[0], **changes), MANY | keys)
    assert {*json.loads(said["scores"])} == left
    assert "confusion" not in said


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "n_k by shares": ("plant", MANY | {"partition.share": 0.93}, "shares of the samples tell"),
    "uploads as states": ("plant", {"sharing": "none"}, "sharing is none in this run"),
    "one upload as the state": (
        "plant",
        {"clients": 5, "aggregation": "krum"},
        "aggregation is krum in this run",
    ),
    "rounds of one": ("plant", {"participation": 0.34}, "a round has one client in this run"),
    "kept uploads": ("plant", {"audit.uploads": True}, "audit.uploads is true in this run"),
    "no masks": ("hospital", {}, "secagg is required here"),
    "a small sum": ("hospital", MASKS, "min-sites is 5 here"),
    "another method": ("hospital", MASKS | {"clients": 5, "method": "fedprox"}, "methods here are"),
    "own code": ("research", {"method": "os:system"}, "is code, of which this node allows none"),
    "a file": ("research", {"dataset": "csv:/etc/passwd"}, "allows no such file"),
    "class counts": ("plant", {"method": "fedproto"}, "egress.class-counts is none here"),
    "sums": ("plant", {"method": "fedncm"}, "mix all classes"),
    "more rounds": ("research", {"rounds": 501}, "rounds is 500 here, and 501 in this run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_would_get_more_is_refused_with_a_neutral_line(
    name: str, tmp_path: Path
) -> None:
    policy, keys, line = REFUSED[name]
    site = node(tmp_path, policy)
    assert site.ask({"models": "cnn5"} | keys) == NEUTRAL
    assert any(line in entry["refused"] for entry in site.log()), site.log()


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "another client's scores": ({}, {"client": 1}, wire.evaluate_message),
    "a folder outside": ({}, {"token": "../../etc"}, wire.evaluate_message),
    "an adaptation": ({"clients-held-out": 1}, {"adapt": True}, wire.evaluate_message),
    "names by an error": ({"data.label-column": "diagnosis"}, {}, wire.evaluate_message),
    "a version that is not there": ({}, {"version": 7}, wire.evaluate_message),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_node_is_asked_beyond_its_part_gives_one_neutral_line(
    name: str, tmp_path: Path
) -> None:
    keys, told, message = ASKED[name]
    site = node(tmp_path, "research")
    keys = {"models": "cnn5"} | keys
    if name.startswith("names"):
        (tmp_path / "own.csv").write_text("age,outcome\n" + "1,2\n" * 40)
        site.config |= {"dataset": f"csv:{tmp_path / 'own.csv'}"}
    assert site.ask(keys, message(2, 1, instruction(**told), 60)) == NEUTRAL


@pytest.mark.slow
def test_no_choice_of_its_own_dp_keys_makes_a_run_cheaper_at_the_cap(tmp_path: Path) -> None:
    site, cheap = Node(tmp_path, "epsilon-cap = 3.0"), DP | {"models": "cnn5"}
    for keys in (
        {"dp.noise": 0.3, "dp.delta": 0.3},
        {"dp.noise": 1e-9},
        {"dp.noise": None, "dp.epsilon": 1e6},
        {"dp.noise": 0.0},
    ):
        state = Plain(BASE | cheap).state
        train = wire.train_message(2, 1, state, instruction(names=[*state]), 60)
        assert site.ask({k: v for k, v in (cheap | keys).items() if v is not None}, train) == (
            NEUTRAL
        )
    assert all("epsilon-cap" in entry["refused"] for entry in site.log())
