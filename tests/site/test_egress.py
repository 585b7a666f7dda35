"""Nothing leaves a site that its policy does not allow: every message of every method, with what
its values may be, over a real server and the real ClientApp."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from pfedlora_flwr import client_app, config
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.dp.accountant import epsilon
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.clients import RunDiverged, RunFailed
from pfedlora_flwr.launch.local import LocalGrid
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.status import find_status
from pfedlora_flwr.site import egress
from pfedlora_flwr.site.egress import NEUTRAL
from pfedlora_flwr.site.log import Log
from pfedlora_flwr.site.policy import Egress, Policy
from tests.conftest import keys_in, result_of
from tests.models.bases import base
from tests.plain import LORA
from tests.served import run_over

pytestmark = pytest.mark.slow
SITES = 6
KEYS = keys_in(
    "rounds=2 dataset=synthetic:700 partition.kind=dirichlet partition.alpha=0.5 batch-size=32"
    " device=cpu models=tests.methods.narrow:Narrow min-success=0.1 min-clients=1"
    " max-failed-rounds=9 node-timeout=0.5"
)
ALWAYS = {
    *("round", "client", "names", "model", "worker", "node", "lost", "seconds", "model_sha256"),
    *("partition_id", "partition", "classes", "name", "base", "data", "versions", "wire"),
    *("withheld", "error"),
    *("flops_by_phase", "epsilon"),  # of the samples that take part
}
SCORES = {"validation", "validation_correct", "test", "test_correct", "scores", "other_accuracies"}
Rules = dict[str, Any]


OPEN: Rules = {
    "scores": "each",
    "samples": "exact",
    "class-counts": "each",
    "step": 10,
    "cap": 5,
    "min-count": 1,
    "losses": True,
    "feature-names": True,
}


def some_rules(draw: random.Random) -> Rules:
    """A policy that holds, drawn."""
    return {
        "scores": draw.choice(["none", "mean", "each"]),
        "samples": draw.choice(["exact", "rounded", "capped"]),
        "class-counts": draw.choice(["none", "rounded", "each"]),
        "step": draw.choice([7, 10, 25]),
        "cap": draw.choice([5, 20]),
        "min-count": draw.choice([1, 1, 5, 12, 30]),
        "losses": draw.random() < 0.5,
        "feature-names": draw.random() < 0.5,
    }


NONE: Mapping[int, str] = MappingProxyType({})


def federate(
    folder: Path, rules: list[Rules], keys: Mapping[str, Any], more: Mapping[int, str] = NONE
) -> list[tuple[int, Message]]:
    """A run of sites with these policies, None: without; all replies as they travel, with their
    sites. more: further rules, by site."""
    nodes = []
    for k, one in enumerate(rules):
        (folder / f"{k}.toml").write_text(
            f"{more.get(k, '')}\n[egress]\n"
            + "".join(f"{n} = {json.dumps(v)}\n" for n, v in one.items())
        )
        home = {"partition-id": k, "state-path": str(folder / str(k))}
        nodes.append(home | ({"policy": str(folder / f"{k}.toml")} if one else {}))
    given = {**KEYS, "clients": len(rules), **keys, "output": str(folder / "run")}
    flat = dict(config.run_config(given).flat())
    seen = list[tuple[int, Message]]()

    def app(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        seen.append((int(context.node_config["partition-id"]), reply))
        return reply

    with suppress(RunFailed, RunDiverged, UserError):
        run_over(LocalGrid(app, nodes, flat), flat)
    return seen


def wrong_in(reply: Message, rules: Rules, site: Site, e: Any, client: int) -> Iterator[str]:
    """What a client's reply tells that the rules forbid."""
    if reply.has_error():
        yield from [] if reply.error.reason == NEUTRAL else [f"a line: {reply.error.reason}"]
        return
    content, least, split = reply.content, rules["min-count"], site.split
    step, by_class = rules["step"], rules["class-counts"] == "each"

    def told(size: int) -> int:
        whole = {"rounded": size // step * step, "capped": min(size, rules["cap"])}
        return whole.get(rules["samples"], size)

    n = told(len(split.train))
    sizes = {"validation": told(len(split.validation)), "test": told(len(split.test))}
    taken = egress.taking_part(Policy(file="a", egress=Egress.of(rules)), site, e.seed, client)
    held = np.bincount(site.dataset.labels[taken.split.train], minlength=10)
    said = wire.told_in(content) or {}
    allowed = ALWAYS | ({"loss", "losses"} if rules["losses"] else set())
    if rules["scores"] == "each" and min(sizes.values()) >= least:
        allowed |= SCORES | ({"confusion"} if by_class and least == 1 else set())
    if rules["feature-names"] or said.get("columns") == "[]":
        allowed |= {"columns"}
    if said.get("other_accuracies") == "{}":
        allowed |= {"other_accuracies"}
    yield from (f"the field {name}" for name in said if name not in allowed)
    if "error" in said and said["error"] != NEUTRAL:
        yield f"a line: {said['error']}"
    for part, size in sizes.items():
        if said.get(part, size) != size:
            yield f"{part} is {said[part]}"
    for name in json.loads(said.get("scores", "{}")):
        rows = taken.split.validation if name.startswith("validation_") else taken.split.test
        of_class = np.bincount(site.dataset.labels[rows])
        enough = by_class and (of_class[of_class > 0] >= least).all()
        if not enough and not name.endswith(("log_loss", "ece")):
            yield f"the score {name}"
        if not rules["losses"] and name.endswith("log_loss"):
            yield f"the loss {name}"
    for name, record in content.metric_records.items():
        if "num_examples" in name and (count := int(record["num_examples"])):
            if "evaluate" in name and count != said.get("test"):
                yield f"the size {count} of its test part"
            if "fitres" in name and not (e.secagg.enabled or e.dp.of_users):
                told_of = held[held >= least]
                sums = {int(told_of.sum()), int((-(-told_of // step) * step).sum())}
                free = sums if "counts" in tensors_of(content) else {n}
                if count not in free or n < least:
                    yield f"n_k is {count}"
    tensors = tensors_of(content)
    if "classes" in tensors and (few := [c for c in tensors["classes"] if held[c] < least]):
        yield f"rows of the classes {few}"
    if "counts" in tensors:
        rounded = all(count % step == 0 for count in tensors["counts"])
        if rules["class-counts"] != "each" and not (rules["class-counts"] == "rounded" and rounded):
            yield "counts of classes"
    if any(name in tensors for name in ("sums", "label")) and least > 1:
        yield "what mixes all classes"
    if "right" in tensors and rules["scores"] != "each" and not e.secagg.enabled:
        yield "validation samples that a candidate gets right"


def tensors_of(content: RecordDict) -> dict[str, Any]:
    """The arrays of an upload by name."""
    said = wire.told_in(content) or {}
    if "names" not in said or not content.array_records.get("fitres.parameters"):
        return {}
    blobs = wire.fit_answer(Message(content, dst_node_id=2, message_type="train")).parameters
    names = json.loads(said["names"])
    return {n: wire.decode(b, 2**30) for n, b in zip(names, blobs.tensors, strict=True)}


def all_wrong(
    folder: Path, rules: list[Rules], keys: Mapping[str, Any]
) -> tuple[list[tuple[int, str]], list[tuple[int, Message]]]:
    """What sites tell that their rules forbid, in a run with all its replies."""
    folder.mkdir(exist_ok=True)
    seen = federate(folder, rules, keys)
    e = config.run_config({**KEYS, "clients": len(rules), **keys}).experiment
    sites = [Site.find(e, k, {}) for k in range(len(rules))]
    assert {reply.metadata.message_type for _, reply in seen} >= {"get_properties"}
    return [(k, w) for k, r in seen for w in wrong_in(r, rules[k], sites[k], e, k)], seen


OPTIONS = {"fedmrl": {"fedmrl.representation-dim": 8}}
SETTINGS: dict[str, dict[str, Any]] = {
    "masks": {"method": "fedavg", "secagg.enabled": True, "secagg.max-samples": 200},
    "users": {"method": "fedavg", "dp.clip": 0.3, "dp.noise": 1.0},
    "held out": keys_in(
        "method=fedavg clients-held-out=2 held-out.samples=8,all held-out.rounds=2"
        " max-failed-rounds=2"
    ),
    "rows": {"method": "pfedlora_plus", "adapter.rows": "classes"},
    "an earlier evaluation": {"method": "fedavg", "evaluate-initial": True},
    "scores by class": keys_in("method=fedavg scores.by-class=true verdict.score=sensitivity@7"),
}


KINDS = ("pfedlora", "pfedlora_plus", "fedit")
"""Of the methods that share weights: an adapter, one by classes, and LoRA. The other ones send
the same, in `make methods-test`; `SETTINGS` have fedavg."""


def kind_of(name: str) -> Any:
    """A method, or one of `SETTINGS`, as a parameter."""
    shares = name in registry.NAMES and (name in LORA or registry.find(name).averages)
    marks = pytest.mark.methods if shares and name not in KINDS else ()
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*map(kind_of, [*registry.NAMES, *SETTINGS])])
def test_nothing_leaves_a_site_that_its_policy_does_not_allow(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    keys = SETTINGS.get(name, {"method": name} | OPTIONS.get(name, {}))
    if name in LORA:
        for library in ("timm", "peft"):
            pytest.importorskip(library)
        keys |= {"models": base(tmp_path, "test_vit"), "train": "lora"}
    rules = [OPEN, *(some_rules(draw) for _ in range(SITES - 1))]
    assert all_wrong(tmp_path, rules, keys)[0] == []
    assert any(line["upload"] for line in Log(tmp_path / "0").lines()), "nothing was sent"


MUTANTS: list[tuple[dict[str, Any], list[tuple[Rules, str]]]] = [
    (
        {"method": "fedavg"},
        [
            ({"scores": "none"}, "the field test"),
            ({"class-counts": "none"}, "the score balanced_accuracy"),
            ({"losses": False}, "the field loss"),
            ({"losses": False}, "the loss log_loss"),
            ({"samples": "rounded"}, "n_k is"),
            ({"samples": "capped"}, "n_k is"),
        ],
    ),
    (
        SETTINGS["scores by class"],
        [
            ({"min-count": 2}, "the score sensitivity@7"),
            ({"class-counts": "none"}, "the field confusion"),
        ],
    ),
    ({"method": "fedridge"}, [({"scores": "none"}, "validation samples that")]),
    (
        {"method": "fedproto"},
        [
            ({"class-counts": "rounded"}, "counts of classes"),
            ({"class-counts": "none"}, "counts of classes"),
        ],
    ),
    ({"method": "fedgh"}, [({"min-count": 12}, "rows of the classes")]),
    ({"method": "fedre"}, [({"min-count": 12}, "what mixes all classes")]),
    (SETTINGS["held out"], [({"scores": "none"}, "the field held_out")]),
]
"""Of keys: rules, one a site, and what is told where none holds."""


def test_scores_that_weigh_classes_alike_leave_where_every_class_has_enough_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {"partition.kind": "iid", "dataset": "synthetic:2000"}
    keys |= {"method": "fedavg", "scores.by-class": True, "rounds": 1}
    rules = [OPEN | {"min-count": least} for least in (2, 3, 2, 30, 30, 30)]
    wrong, seen = all_wrong(tmp_path / "with", rules, keys)
    told = [
        len(json.loads(said["scores"]))
        for _, reply in seen
        if "scores" in (said := wire.told_in(reply.content) or {})
    ]
    assert {*told} == {12, 8, 4}, "all, those of one part, and none"
    assert wrong == []
    monkeypatch.setattr(
        "pfedlora_flwr.federation.client.vouched", lambda *_: {"enough": '["", "validation_"]'}
    )
    told_anyway = all_wrong(tmp_path / "without", rules, keys)[0]
    assert "the score balanced_accuracy" in [line for _, line in told_anyway]


@pytest.mark.parametrize(("keys", "told"), MUTANTS, ids=[keys["method"] for keys, _ in MUTANTS])
def test_each_rule_switched_off_turns_the_property_red(
    keys: dict[str, Any],
    told: list[tuple[Rules, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = [OPEN | told[k % len(told)][0] for k in range(SITES)]
    assert all_wrong(tmp_path / "with", rules, keys)[0] == []
    monkeypatch.setattr(egress, "_limited", lambda policy, said: dict(said))
    monkeypatch.setattr(
        "pfedlora_flwr.federation.client.limited_upload", lambda p, upload, *_: upload
    )
    monkeypatch.setattr("pfedlora_flwr.federation.client.taking_part", lambda p, site, *_: site)
    monkeypatch.setattr("pfedlora_flwr.site.policy.Policy.objections", lambda *_: iter(()))
    found = all_wrong(tmp_path / "without", rules, keys)[0]
    for i, (_, line) in enumerate(told):
        assert any(k % len(told) == i and said.startswith(line) for k, said in found), line


def test_a_run_goes_on_without_what_some_sites_withhold_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = [OPEN | {"scores": "none", "losses": False}, *[Rules()] * (SITES - 1)]
    caplog.set_level("INFO", "pfedlora_flwr")
    federate(
        tmp_path, rules, {"method": "fedavg", "evaluate-every": 2, "rounds": 3, "min-success": 1.0}
    )
    result = result_of(tmp_path / "run")
    assert result["status"] == "completed", result["error"]
    assert [*result["per_client"]] == [str(k) for k in range(1, SITES)]
    lines = [json.loads(text) for text in (tmp_path / "run" / "clients.jsonl").open()]
    assert {tuple(row.get("withheld", ())) for row in lines if row["client"] == 0} == {
        ("losses",),
        ("losses", "scores"),
    }
    line = "client 0 keeps something back by its site's policy: mean losses and"
    assert line in caplog.text
    entries = [*Log(tmp_path / "0").lines()]
    assert [entry["method"] for entry in entries] == ["fedavg"] * len(entries)
    assert sum(entry["upload"] for entry in entries) == 3


CAPS = {
    2: (
        f"epsilon-cap = {epsilon(5.0, 2, 1e-5) + 0.01}",
        "epsilon-cap is set here, and this visit would exceed it: this node steps out",
    ),
    4: ("bytes = 500_000", "bytes is 500000 here, and"),
}
"""A site's rule, which lets two visits pass, and its line of the third."""


def test_a_site_at_its_cap_in_mid_run_steps_out_and_the_others_go_on_to_the_end(
    tmp_path: Path,
) -> None:
    keys = keys_in("method=fedavg rounds=4 min-success=0.6 dp.clip=0.3 dp.noise=5.0")
    federate(tmp_path, [OPEN] * SITES, keys, {k: rule for k, (rule, _) in CAPS.items()})
    rounds = [json.loads(text) for text in (tmp_path / "run" / "rounds.jsonl").open()][1:]
    assert [row["admitted"] for row in rounds] == [[*range(6)]] * 2 + [[0, 1, 3, 5]] * 2
    lines = [json.loads(text) for text in (tmp_path / "run" / "clients.jsonl").open()]
    told = {(row["client"], row["reason"]) for row in lines if row["status"] == "failed"}
    assert told == {(k, NEUTRAL) for k in CAPS}
    status = find_status(RunDirectory(tmp_path / "run"))
    assert status["state"] == "completed"
    for k, (_, line) in CAPS.items():
        trains = [entry for entry in Log(tmp_path / str(k)).lines() if entry["kind"] == "train"]
        assert [line in entry.get("refused", "") for entry in trains] == [
            *(False, False, True, True, True, True)  # each round asks once more
        ]
        assert status["per_client"][str(k)]["reason"] == NEUTRAL
