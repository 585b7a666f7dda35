"""Methods of sums under masks: the sum is that of the clear run to the masks' rounding, and no
client's difference stands alone in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pfedlora_flwr.audit.audit import audit
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.features.masks.plan import of_sizes
from pfedlora_flwr.methods.moments import Sums
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import run_locally
from tests.methods.test_sums import METHODS, Federation, assert_exact, drawn, made, some
from tests.plain import Plain

MASKS = {"secagg.enabled": True, "secagg.max-samples": 64}


def read(federation: Federation) -> Sums:
    return Sums.among(federation.method.read(federation.state))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_sum_is_the_clear_one_to_rounding_and_counts_are_exact(
    name: str, tmp_path: Path
) -> None:
    keys = {"method": name, "models": "tests.methods.narrow:Narrow", "clients": 4}
    keys |= {"dataset": "synthetic:160", "partition.classes-per-client": 5}
    clear = Plain(keys)
    clear.train(2)
    done = run_locally(tmp_path / "run", keys | MASKS)
    assert done.code == 0, done.stderr
    saved = RunDirectory(tmp_path / "run").checkpoints.load()
    assert saved is not None
    masked = Plain(keys | MASKS).method
    assert isinstance(masked, OfSums)
    found = masked.read(saved.tensors)
    assert found["counts"].equal(clear.state["counts"])
    assert {t.dtype for t in found.values()} == {torch.float64}
    bound = 4 * 2 * 64 / LEVELS
    for part in ("sums", "gram"):
        torch.testing.assert_close(found[part], clear.state[part], rtol=0, atol=bound)
    assert clear.state["sums"].abs().max() > 1e4 * bound
    assert done.result["accuracy"]["final"] == pytest.approx(clear.accuracy(), abs=0.02)
    rows = [row for row in done.rows("rounds.jsonl") if row["round"]]
    d, squares = masked.width, masked.squares
    sent = 10 + 10 * d + (d * (d + 1) // 2 if squares else 0) + 1
    assert [row["parameters_up"] for row in rows] == [4 * sent] * 2


@pytest.mark.parametrize(("name", "s"), [("fedncm", 0.0), ("fedlda", 0.3), ("fedridge", 0.02)])
def test_a_difference_waits_until_enough_have_one(name: str, s: float) -> None:
    keys = MASKS | ({} if name == "fedncm" else {"sums.shrinkage": s})
    federation = Federation(made(name, **keys, **{"sums.changing": 3}), 4)
    pool = {k: drawn(40, k) for k in range(4)}
    first = {k: some(pool[k], torch.arange(20)) for k in range(3)}
    federation.play(first)
    assert_exact(federation.method, read(federation), federation.all_samples(), s)
    inside = federation.all_samples()
    for changed in ({0: pool[0]}, {3: pool[3]}, {0: pool[0], 3: pool[3]}):
        before = federation.state
        uploads = federation.play(first | changed)
        for client, upload in uploads.items():
            moved = {n for n, t in upload.tensors.items() if not t.equal(before[n])}
            assert moved <= {"changing"}, client
        told = federation.method.read(federation.state)["changing"]
        assert told.item() == len(changed)
        assert_exact(federation.method, read(federation), inside, s)
    federation.play(pool, lost=(2,))
    assert federation.method.read(federation.state)["changing"].item() == 3
    federation.play(pool, lost=(1,))  # the three that are left tell of all since round 1
    federation.inside = {0: pool[0], 1: first[1], 2: pool[2], 3: pool[3]}
    assert_exact(federation.method, read(federation), federation.all_samples(), s)


def test_validation_counts_are_those_of_one_round() -> None:
    federation = Federation(made("fedlda", **MASKS, **{"sums.shrinkage": "validation"}), 2)
    parts = {0: drawn(14, 1), 1: drawn(9, 2)}
    clear = Federation(made("fedlda", **{"sums.shrinkage": "validation"}), 2)
    for _ in range(3):
        federation.play(parts)
        clear.play(parts)
        found = federation.method.read(federation.state)["right"]
        assert found.equal(clear.state["right"])
    assert found.any()


def test_a_client_above_the_range_refuses_in_a_line() -> None:
    with pytest.raises(UserError, match=r"more than secagg\.max-samples training samples, 64"):
        Federation(made("fedlda", **MASKS), 1).play({0: drawn(65, 1)})


@pytest.mark.slow
def test_what_sums_show_of_single_holders_is_counted_at_the_start_and_by_the_audit(
    tmp_path: Path,
) -> None:
    keys: dict[str, object] = {"method": "fedlda", "models": "cnn5", "clients": 5}
    keys |= {"dataset": "synthetic:100", "partition.classes-per-client": 2}
    keys |= {"partition.samples-per-client": 3}
    for more in ({}, MASKS):
        plain = Plain(keys | more)
        held = [plain.data(k).train.labels for k in range(5)]
        pairs = [(int(c), int((y == c).sum())) for y in held for c in y.unique()]
        single = sum(n == 1 for _, n in pairs)
        line = f"{single} of {len(pairs)} class sums are of one sample"
        if more:
            line = f"10 of 10 classes have one holder, .* as it is, {single} of them with one"
            [told] = plain.method.remarks()
            assert "nothing until 5 of a round have" in told
            rounding = " ".join(of_sizes(plain.config, Setup.of(plain.config).partition))
            assert "rounded by up to 3.1e-05" in rounding
        assert re.search(line, " ".join(Setup.of(plain.config).remarks))
        output = tmp_path / str(bool(more))
        assert run_locally(output, keys | more | {"audit.uploads": not more}).code == 0
        assert re.search(line, " ".join(audit(RunDirectory(output))["notes"]))
        assert single
