"""Every refusal, with a really malicious client beside honest ones in a running federation; the
rest of the round is not touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.messages import taken_in
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import result_of
from tests.federation import malice
from tests.federation.malice import KEYS, simulate
from tests.plain import Plain

SMALL = {"models": "tests.methods.narrow:Narrow", "dataset": "synthetic:1500"}


def without(absent: list[int], rounds: int, **keys: Any) -> Plain:
    """The same run with these clients' visits left out."""
    plain = Plain(KEYS, rounds=rounds, **keys)
    for _ in range(rounds):
        plain.play([k for k in range(plain.experiment.clients) if k not in absent])
    return plain


@pytest.mark.slow
def test_every_malice_is_refused_with_its_reason_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    honest = 4
    sorts = dict(enumerate([*malice.MALICE, *malice.FAILING], start=honest))
    clients = honest + len(sorts)
    keys = SMALL | {"clients": clients, "min_success": 0.05}
    output = simulate(tmp_path, sorts, list(malice.STRANGERS), rounds=1, **keys)
    rows: dict[int, Any] = {row["client"]: row for row in RunDirectory(output).visits()}
    assert [client for client, row in rows.items() if row["status"] == "ok"] == list(range(honest))
    reasons = {sort: rows[client]["reason"] for client, sort in sorts.items()}
    for sort, (_, part) in malice.MALICE.items():
        assert reasons[sort].startswith("refused: "), sort
        assert part in reasons[sort], sort
        assert len(reasons[sort]) < 1000, sort
    for sort, part in malice.FAILING.items():
        assert part in reasons[sort], sort
    for sort, part in malice.STRANGERS.items():
        assert part in caplog.text, sort
    result = result_of(output)
    expected = without(list(sorts), rounds=1, **keys)
    assert result["status"] == "completed"
    assert result["refused"] == len(malice.MALICE) + len(malice.STRANGERS)
    assert result["shared_sha256"] == tensors_sha256(expected.state)


def test_an_epsilon_is_taken_where_it_is_of_a_clients_own_records() -> None:
    users = {"dp.clip": 1, "dp.noise": 1, "adapter.down": "fixed"}
    records = {"method": "pfedlora_plus", "adapter.predict": "sum", "adapter.rows": "samples"} | {
        **{"dp.clip": 1, "dp.noise": 1, "dp.level": "record"},
        **{"train": "head", "normalise": "model"},
    }
    taken = {
        name: taken_in(from_flat(keys))
        for name, keys in {
            "plain": {},
            "masked": {"secagg.enabled": True},
            "users": users,
            "records": records,
        }.items()
    }
    assert {name for name, found in taken.items() if "epsilon" in found} == {"records"}
    assert {name for name, found in taken.items() if "losses" in found} == {"plain"}
    assert taken["users"] | {"epsilon"} == taken["records"]
    assert {name for name, found in taken.items() if "other_accuracies" in found} == {"plain"}
    assert {name for name, found in taken.items() if "model_sha256" in found} == {"plain"}


@pytest.mark.slow
def test_a_clients_epsilon_does_not_hide_the_servers(tmp_path: Path) -> None:
    keys = SMALL | {"dp.clip": 1.0, "dp.noise": 1.0, "adapter.down": "fixed", "clients": 3}
    output = simulate(tmp_path, {1: "an epsilon of 0"}, rounds=1, **keys)
    [row] = RunDirectory(output).rounds()
    result = result_of(output)
    assert row["admitted"] == [0, 1, 2]
    assert row["epsilon"] == result["privacy"]["dp"]["epsilon"] > 0
    assert not any("epsilon" in visit for visit in RunDirectory(output).visits())


@pytest.mark.slow
def test_two_of_ten_that_send_nan_and_1000_times_might_as_well_not_report(tmp_path: Path) -> None:
    keys = SMALL | {"clients": 10, "min_success": 0.8}
    output = simulate(tmp_path, {3: "NaN", 8: "1000 times"}, [], rounds=2, **keys)
    result = result_of(output)
    expected = without([3, 8], rounds=2, **keys)
    assert result["shared_sha256"] == tensors_sha256(expected.state)
    assert result["refused"] == 4
    assert [row["refused"] for row in RunDirectory(output).rounds()] == [[3, 8], [3, 8]]
    models = {
        row["client"]: row
        for row in RunDirectory(output).visits()
        if row["round"] == 2 and row["status"] == "ok"
    }
    assert sorted(models) == [0, 1, 2, 4, 5, 6, 7, 9]
    assert {k for k, row in result["per_client"].items() if row["last_round"] == 2} == {
        str(k) for k in models
    }


@pytest.mark.slow
def test_a_client_that_is_gone_before_it_was_evaluated_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    keys = SMALL | {"clients": 4, "min_success": 0.6, "evaluate_every": 2}
    output = simulate(tmp_path, {3: malice.GONE}, rounds=2, **keys)
    result = result_of(output)
    assert result["status"] == "completed"
    assert [row["refused"] for row in RunDirectory(output).rounds() if row["round"]] == [[], [3]]
    last = {
        row["client"]: row["status"] for row in RunDirectory(output).visits() if row["round"] == 2
    }
    assert last == {0: "ok", 1: "ok", 2: "ok", 3: "failed"}
