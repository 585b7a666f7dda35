"""What uploads reveal of single clients: the figures of `pfedlora audit` against a few lines of
NumPy, and what is kept for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pfedlora_flwr import config
from pfedlora_flwr.audit import membership
from pfedlora_flwr.audit.audit import audit
from pfedlora_flwr.audit.classes import by_class
from pfedlora_flwr.audit.measure import Part, measure
from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.audit.views import shared_part, shared_predictor
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.features.audit.table import audits
from pfedlora_flwr.report.load import load
from pfedlora_flwr.runs.audits import Audit
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.training.loop import Samples
from tests import plain
from tests.conftest import Call, keys_in, run_locally

KEYS = keys_in(
    "clients=5 rounds=2 batch-size=16 models=cnn5 evaluate-initial=false audit.uploads=true"
)

SMALL = {"dataset": "synthetic:300", "models": "tests.methods.narrow:Narrow"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pFedLoRA on the digits, two classes on each of five clients, with its uploads."""
    output = tmp_path_factory.mktemp("kept") / "pfedlora"
    assert run_locally(output, KEYS).code == 0
    return output


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(kept, tmp_path / "run")
    return tmp_path / "run"


def audited(pfedlora: Call, *paths: Path) -> Any:
    code, out, err = pfedlora("audit", *map(str, paths), "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def auc(positives: list[float], negatives: list[float]) -> float:
    """The share of pairs in which the positive one is higher, ties counted half."""
    return float(np.mean([(p > n) + (p == n) / 2 for p in positives for n in negatives]))


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def held(run: Path) -> list[set[int]]:
    setup = DataSetup(RunDirectory(run).experiment())
    data, partition = setup.dataset, setup.partition
    return [set(data.labels[split.train].tolist()) for split in partition.clients]


def tensors(run: Path, round: int, name: str) -> dict[str, np.ndarray]:
    return {
        n: t.double().numpy()
        for n, t in load_file(
            run / "uploads" / f"round-00000{round}" / f"{name}.safetensors"
        ).items()
    }


@pytest.mark.slow
def test_uploads_tell_which_classes_a_client_holds_and_their_sum_does_not(
    run: Path, pfedlora: Call
) -> None:
    told = audited(pfedlora, run)
    assert told["source"] == "uploads"
    assert told["rounds"] == [1, 2]
    assert told["classes"]["layer"] == "up.weight, up.bias"
    assert told["classes"]["upload"]["auc"] >= 0.95
    assert told["classes"]["sum"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert told["classes"]["sum"]["low"] is None, (
        "there are no other clients of whom this sum could be"
    )
    pairs: dict[str, tuple[list[float], list[float]]] = {"bias": ([], []), "row norm": ([], [])}
    for round in (1, 2):
        before = tensors(run, round, "state")
        for client, classes in enumerate(held(run)):
            after = tensors(run, round, f"client-00000{client}")
            scores = {
                "bias": after["up.bias"] - before["up.bias"],
                "row norm": np.sqrt(((after["up.weight"] - before["up.weight"]) ** 2).sum(1)),
            }
            for name, values in scores.items():
                for c, value in enumerate(standard(values)):
                    pairs[name][c not in classes].append(value)
    for name, (positives, negatives) in pairs.items():
        assert told["classes"]["attacks"][name]["auc"] == pytest.approx(auc(positives, negatives))
    best = max(told["classes"]["attacks"].values(), key=lambda attack: attack["auc"])
    assert told["classes"]["upload"]["auc"] == best["auc"]


@pytest.mark.slow
def test_the_loss_of_a_clients_samples_is_what_its_upload_gives(run: Path, pfedlora: Call) -> None:
    told = audited(pfedlora, run)["membership"]
    positives, negatives = [], []
    for client in range(5):
        trained, theta = load_trained(run, client), tensors(run, 2, f"client-00000{client}")
        samples, members = membership.candidates(Seen(RunDirectory(run)), client)
        features = trained.representations(samples.inputs.numpy()).double().numpy()
        logits = (features @ theta["down.weight"].T + theta["down.bias"]) @ theta[
            "up.weight"
        ].T + theta["up.bias"]
        labels = samples.labels.numpy()
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
        scores = standard(-losses)
        positives += scores[members].tolist()
        negatives += scores[~members].tolist()
    by_hand = auc(positives, negatives)
    # near 0 losses tie, or not, by rounding
    assert told["bounds"]["loss"]["auc"] == pytest.approx(by_hand, abs=1e-3)
    assert told["bound"]["auc"] == max(attack["auc"] for attack in told["bounds"].values())
    assert set(told["attacks"]) == {
        f"{s}, {w} encoder" for s in ("loss", "fall") for w in ("initial", "another client's")
    }
    assert told["auc"] == max(attack["auc"] for attack in told["attacks"].values()) < 0.65


@pytest.mark.slow
def test_members_and_others_hold_as_many_samples_of_each_class(tmp_path: Path) -> None:
    """Otherwise a class that few train on, or none, would tell who was trained on."""
    keys = KEYS | {"partition.kind": "dirichlet", "partition.samples-per-client": 20, "rounds": 1}
    run = RunDirectory(run_locally(tmp_path / "run", keys).output)
    seen, parts = Seen(run), DataSetup(run.experiment()).partition.clients
    assert any(
        (seen.data(k).test.labels.bincount(minlength=10).numpy()[~seen.held(k)] > 0).any()
        for k in range(5)
    ), "a client is asked about classes that it did not train on"
    for client, split in enumerate(parts):
        samples, members = membership.candidates(seen, client)
        counts = [samples.labels[part].bincount(minlength=10) for part in (members, ~members)]
        assert torch.equal(*counts)
        assert 0 < members.sum() <= min(len(split.train), len(split.validation) + len(split.test))


def table(path: Path, owners: Mapping[str, Sequence[str]]) -> str:
    """A dataset of vectors in a CSV file: by owner, the labels of its rows."""
    draws = np.random.default_rng(0)
    rows = [
        f"{','.join(map(str, draws.normal(size=4)))},{label},{owner}"
        for owner, labels in owners.items()
        for label in labels
    ]
    path.write_text("\n".join(["a,b,c,d,label,owner", *rows]))
    return f"csv:{path}"


def audited_table(output: Path, owners: Mapping[str, Sequence[str]], **keys: object) -> Audit:
    """The audit of a short run on such data."""
    given = {
        "dataset": table(output.with_suffix(".csv"), owners),
        "data.client-column": "owner",
        "partition.kind": "natural",
        "clients": len(owners),
        "rounds": 1,
        "setting": "homogeneous",
        "method": "fedavg",
        "evaluate-initial": False,
        "audit.uploads": True,
    }
    assert run_locally(output, given | keys).code == 0
    return audit(RunDirectory(output))


FEW, APART = "aaaaaaaaaabbbbbbbbbb", "abcdefghij"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "said"),
    [((FEW, APART, FEW), "1 of 3 clients left out"), ((APART, APART), "2 of 2 clients left out")],
)
def test_clients_without_a_class_in_both_parts_are_left_out(
    tmp_path: Path, labels: tuple[str, ...], said: str
) -> None:
    owners = {f"o{place}": own for place, own in enumerate(labels)}
    found = audited_table(tmp_path / "run", owners)
    named = ", ".join(str(place) for place, own in enumerate(labels) if own == APART)
    assert found["notes"][0] == (
        f"membership: {said}, without a class both in their training and in their held-out part:"
        f" {named}"
    )
    assert (found["membership"] is None) == (FEW not in labels)
    assert found["classes"]["upload"] is not None


def test_at_most_so_many_are_scored() -> None:
    assert membership._at_most(torch.tensor([600, 0, 900]), 1000).tolist() == [400, 0, 600]
    one_each = membership._at_most(torch.ones(2500, dtype=torch.long), 1000)
    assert one_each.sum() == 1000
    assert one_each.max() == 1
    assert membership._at_most(torch.tensor([6, 4]), 1000).tolist() == [6, 4]
    assert membership._first(torch.tensor([1, 0, 1, 1, 2]), torch.tensor([1, 2, 0])).tolist() == [
        0,
        1,
        2,
    ]


def test_a_round_that_was_not_finished_is_not_audited(run: Path) -> None:
    """Its uploads are there, and its checkpoint is not: the run was killed in between."""
    directory = RunDirectory(run)
    assert Seen(directory).numbers == [1, 2]
    newest, _ = sorted(directory.checkpoints.paths(), reverse=True)
    newest.unlink()
    assert Seen(directory).numbers == [1]


@pytest.mark.slow
def test_a_round_whose_noised_state_is_not_here_is_not_audited(tmp_path: Path) -> None:
    """The uploads of the rounds after it were no longer kept."""
    keys = KEYS | SMALL | {"dp.clip": 0.5, "dp.noise": 1.0, "adapter.down": "fixed"}
    run = RunDirectory(run_locally(tmp_path / "run", keys).output)
    assert Seen(run).numbers == [1, 2]
    later = {"resume": True, "rounds": 3, "audit.uploads": False}
    result = run_locally(run.path, keys | later).result
    assert Seen(run).numbers == [1]
    assert any("audit.uploads" in line for line in result["privacy"]["not_covered"])


@pytest.mark.slow
def test_a_model_that_knows_its_samples_by_heart_tells_them(tmp_path: Path, pfedlora: Call) -> None:
    """Random images with random labels: whatever is right of them was seen in training."""
    draws = np.random.default_rng(0)
    images, labels = draws.integers(0, 256, (120, 32, 32, 3), np.uint8), draws.integers(0, 4, 120)
    np.savez(tmp_path / "random.npz", images=images, labels=labels)
    keys = keys_in(
        "method=fedavg setting=homogeneous clients=5 rounds=1 local-epochs=30 batch-size=8 "
        "lr=0.001 optimizer=adamw"
    )
    keys |= {
        "dataset": f"npz:{tmp_path}/random.npz",
        "partition.kind": "iid",
        "audit.uploads": True,
        "evaluate-initial": False,
    }
    keys |= {"models": "tests.methods.narrow:Narrow"}
    assert run_locally(tmp_path / "run", keys).code == 0
    told = audited(pfedlora, tmp_path / "run")["membership"]
    assert told["attacks"]["loss"]["auc"] > 0.9
    assert told["low"] > 0.7


@pytest.mark.slow
def test_a_secure_run_is_audited_by_its_sum(tmp_path: Path, pfedlora: Call) -> None:
    secure = {"audit.uploads": False, "secagg.enabled": True, "secagg.max-samples": 512}
    assert run_locally(tmp_path / "run", KEYS | SMALL | secure).code == 0
    told = audited(pfedlora, tmp_path / "run")
    assert (told["source"], told["classes"]["upload"], told["membership"]["of"]) == (
        "sum",
        None,
        "sum",
    )
    assert told["membership"]["low"] is None, "as of classes: there is no other sum"
    assert told["classes"]["sum"]["auc"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_without_uploads_the_sum_alone_is_audited_and_a_report_shows_both(
    run: Path, kept: Path, tmp_path: Path, pfedlora: Call
) -> None:
    shutil.rmtree(run / "uploads")
    shutil.rmtree(run / "clients")
    whole = audited(pfedlora, kept)
    code, out, _ = pfedlora("audit", str(run))
    assert code == 0
    assert (
        "only the sum of the last round's uploads is audited: single ones were not kept"
        " (audit.uploads)" in out
    )
    assert "not every encoder is here: the model of client" in out
    told = json.loads((run / "audit.json").read_text())
    assert (
        told["source"],
        told["rounds"],
        told["classes"]["upload"],
        told["membership"]["of"],
    ) == ("sum", [2], None, "sum")
    assert told["classes"]["rounds"]["2"] == {
        name: value for name, value in whole["classes"]["rounds"]["2"].items() if "sum" in name
    }
    [row] = audits(load([kept])).rows
    assert row["audited by"] == "uploads"
    assert row["classes, upload: AUC"].startswith(f"{whole['classes']['upload']['auc']:.3f} (")
    [row] = audits(load([run])).rows
    assert (row["audited by"], row["classes, upload: AUC"]) == ("the last sum", "–")


@pytest.mark.slow
def test_a_resumed_run_leaves_no_stale_uploads(run: Path, kept: Path) -> None:
    """Killed between a round's uploads and its checkpoint, of which there is one that this time is
    not sent."""
    (run / "result.json").unlink()
    (run / "server" / "round-000002.checkpoint").unlink()
    uploads = run / "uploads" / "round-000002"
    shutil.copy(uploads / "client-000000.safetensors", uploads / "client-000009.safetensors")
    shutil.copytree(uploads, run / "uploads" / "round-000003")
    (run / "audit.json").write_text("{}")
    assert run_locally(run, KEYS | {"resume": True}).code == 0
    assert not (run / "audit.json").exists()
    names = sorted(str(path.relative_to(kept)) for path in (kept / "uploads").rglob("*"))
    assert sorted(str(path.relative_to(run)) for path in (run / "uploads").rglob("*")) == names
    for name in (name for name in names if name.endswith("safetensors")):
        again, before = load_file(run / name), load_file(kept / name)
        assert list(again) == list(before)
        assert all(torch.equal(again[n], before[n]) for n in before)


@pytest.mark.slow
def test_compressed_uploads_and_uploads_that_name_the_classes(
    tmp_path: Path, pfedlora: Call
) -> None:
    for method, dataset in (
        ("fedkd", "synthetic:400"),
        ("fd", "synthetic:200"),
        ("pfedes", "synthetic:200"),
    ):
        assert (
            run_locally(
                tmp_path / method, KEYS | {"method": method, "dataset": dataset, "rounds": 1}
            ).code
            == 0
        )
    fd, fedkd, pfedes = audited(pfedlora, tmp_path)
    assert fedkd["classes"]["upload"]["auc"] >= 0.95
    assert fedkd["classes"]["sum"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert set(fedkd["membership"]["attacks"]) == {"loss", "fall"}
    assert fedkd["membership"]["bound"] is None
    assert (fd["classes"]["layer"], fd["classes"]["upload"]["auc"], fd["classes"]["sum"]) == (
        "classes",
        1,
        None,
    )
    assert (pfedes["classes"]["layer"], pfedes["classes"]["upload"], pfedes["membership"]) == (
        None,
        None,
        None,
    )
    assert pfedes["notes"][0].startswith("no layer by class")
    shutil.rmtree(tmp_path / "fd" / "uploads")
    code, _, err = pfedlora("audit", str(tmp_path / "fd"))
    assert (
        code,
        "kept no uploads, and in what its server keeps for method fd there is nothing to audit"
        in err,
    ) == (2, True)


@pytest.mark.parametrize(
    ("shapes", "layer"),
    [
        (
            {"down.weight": (10, 500), "down.bias": (10,), "up.weight": (10, 10), "up.bias": (10,)},
            ["up.weight", "up.bias"],
        ),
        ({"weight": (10, 500)}, ["weight"]),
        ({"representation": (500,), "label": (10,)}, ["label"]),  # FedRE's
        ({"2.weight": (10, 8, 3, 3), "2.bias": (10,)}, []),  # ten filters are no classes
        ({"fc1.weight": (500, 800), "fc1.bias": (500,)}, []),
        ({"classes": (10,), "means": (10, 500)}, []),
    ],
)
def test_the_layer_by_class_is_the_last_whose_rows_are_as_many(
    shapes: dict[str, tuple[int, ...]], layer: list[str]
) -> None:
    assert by_class({name: torch.zeros(shape) for name, shape in shapes.items()}, 10) == layer


def test_a_loss_that_overflows_counts_as_the_largest() -> None:
    samples = Samples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    logits = torch.tensor([[0.0, 0], [0, 9], [torch.nan, 0], [torch.inf, torch.inf]])
    losses = membership.losses(lambda _: logits, samples)
    assert losses[0] < losses[1]
    assert losses[2:].tolist() == [losses[1]] * 2


def test_an_interval_is_a_jackknife_over_clients() -> None:
    draws = np.random.default_rng(0)
    parts = [
        Part(truth := draws.random(n) < 0.4, np.round(truth + draws.normal(size=n), 1))
        for n in (8, 13, 5, 9)
    ]
    parts.append(Part(np.ones(3, bool), np.zeros(3)))
    found = measure(parts)
    assert found is not None
    truth, scores = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("truth", "scores")
    )
    assert found["auc"] == pytest.approx(auc(scores[truth].tolist(), scores[~truth].tolist()))
    without = []
    for left_out in parts:
        others = [p for p in parts if p is not left_out]
        t, x = (np.concatenate([getattr(p, n) for p in others]) for n in ("truth", "scores"))
        without.append(auc(x[t].tolist(), x[~t].tolist()))
    half = 2.7764451 * 4 * np.std(without, ddof=1) / 5**0.5  # Student's t with 4 degrees
    expected = max(0, found["auc"] - half), min(1, found["auc"] + half)
    assert (found["low"], found["high"]) == pytest.approx(expected)
    highest = scores[~truth].max()  # fewer than 100 negatives: none may be taken for a positive
    assert found["tpr_at_1pct"] == pytest.approx(np.mean(scores[truth] > highest))
    assert (found["positives"], found["negatives"]) == (truth.sum(), (~truth).sum())
    assert measure([Part(np.ones(2, bool), np.arange(2.0))]) is None


def test_few_clients_and_sums_have_no_interval() -> None:
    part = Part(np.array([True, False]), np.array([1.0, 0.0]))
    for parts, one_source in (([part], False), ([part] * 4, False), ([part] * 5, True)):
        found = measure(parts, one_source=one_source)
        assert found is not None
        assert (found["auc"], found["low"], found["high"]) == (1, None, None)
    found = measure([part] * 5)
    assert found is not None
    assert found["low"] == 1


@pytest.mark.slow
def test_an_audit_of_few_samples_says_so(tmp_path: Path) -> None:
    found = audited_table(tmp_path / "run", {"o0": "aaaaabbbbb", "o1": "aaaaabbbbb"})
    told = found["membership"]
    assert told is not None
    assert (told["low"], told["high"]) == (None, None)
    assert 0 < told["positives"] == told["negatives"] < 100
    assert found["notes"][-1] == (
        "with fewer than 100 negatives TPR at 1 % FPR is the TPR at no false positive: samples has"
        f" {told['negatives']}"
    )
    [row] = audits(load([tmp_path / "run"])).rows
    assert row["samples: AUC"] == f"{told['auc']:.3f}"


def test_fedbabus_body_is_read_before_the_head_that_the_seed_gives() -> None:
    """With it the body was trained, and with it the server makes predictions."""
    babu: Any = plain.make(config.from_flat({"method": "fedbabu", "models": "cnn5", "clients": 2}))
    data = plain.samples([0, 1, 2, 3])
    kept = babu.initial_model(1)
    body = babu.trained_body(kept, babu.state_init(3), data, plain.visit(babu.experiment))
    read = shared_predictor(babu, shared_part(babu, {}, body))
    assert read is not None
    assert torch.equal(read(data.inputs), kept.model.eval()(data.inputs))


def test_fedmrls_small_model_is_read_behind_a_clients_projection() -> None:
    """Only there its head was trained."""
    mrl: Any = plain.make(config.from_flat({"method": "fedmrl", "models": "cnn5", "clients": 2}))
    data = plain.samples([0, 1, 2, 3])
    kept = mrl.initial_model(1)
    sent = mrl.local_update(kept, mrl.state_init(3), data, plain.visit(mrl.experiment)).tensors
    assert shared_predictor(mrl, sent) is None
    read = shared_predictor(mrl, sent, kept.eval())
    assert read is not None
    assert torch.equal(read(data.inputs), kept.small_head(kept.encode(data.inputs)))
    initial = shared_predictor(mrl, sent, mrl.initial_model(1).eval())
    assert initial is not None
    assert not torch.equal(read(data.inputs), initial(data.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, 10])
def test_the_interval_holds_what_other_clients_would_have_in_95_percent(clients: int) -> None:
    """Clients differ by 0.3 of a sample's spread; a bootstrap held it in 82 to 87 of 100."""
    draws = np.random.default_rng(clients)
    truth = np.repeat([True, False], 30)
    real = NormalDist().cdf(0.5 / (2 + 0.3**2) ** 0.5)
    held = 0
    for _ in range(300):
        shifts = 0.5 + 0.3 * draws.normal(size=clients)
        of = (np.concatenate([draws.normal(s, 1, 30), draws.normal(0, 1, 30)]) for s in shifts)
        found = measure([Part(truth, scores) for scores in of])
        assert found
        low, high = found["low"] or 0, found["high"] or 0
        held += low <= real <= high
    assert 0.92 <= held / 300 <= 0.98
