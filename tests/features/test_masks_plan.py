"""What secure aggregation needs, as a run says it before its start."""

from __future__ import annotations

import pytest

from pfedlora_flwr.config import run_config
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.masks.plan import of_keys, of_sizes
from tests.conftest import keys_in

KEYS: dict[str, object] = keys_in(
    "clients=4 dataset=synthetic:400 partition.kind=iid secagg.enabled=true"
)


def keys_told(**keys: object) -> list[str]:
    return [*of_keys(run_config(KEYS | keys))]


def sizes_told(most: int, **keys: object) -> list[str]:
    config = run_config(KEYS | {"secagg.max-samples": most} | keys)
    return [*of_sizes(config, DataSetup(config.experiment).partition)]


def test_a_min_success_below_the_threshold_is_told_with_both() -> None:
    line = "warning: min-success is 0.1; secagg.threshold needs"
    assert keys_told(**{"min-success": 0.1}) == [f"{line} 3 of 4 clients"]
    many = {"clients": 100, "dataset": "synthetic:4000", "min-success": 0.1}
    assert keys_told(**many) == [f"{line} 15 of 21 holders of a client's shares"]
    assert keys_told(**many | {"min-success": 0.72}) == []
    for enough in (0.7, 0.75, 1.0):  # 3 or 4 of 4
        assert keys_told(**{"min-success": enough}) == []
    assert keys_told(**{"min-success": 0.1, "secagg.enabled": False}) == []


def test_a_round_timeout_whose_stages_are_too_short_for_a_message_is_told() -> None:
    (line,) = keys_told(**{"round-timeout": 60})
    assert line.startswith("warning: round-timeout is 60, of which a stage of secure aggregation")
    assert "has 9 s;" in line
    assert keys_told(**{"round-timeout": 70}) == []


def test_samples_beyond_the_most_are_refused_before_the_start() -> None:
    sizes = [len(s.train) for s in DataSetup(run_config(KEYS).experiment).partition.clients]
    largest = max(sizes)
    with pytest.raises(UserError) as refused:
        sizes_told(largest - 1)
    assert str(refused.value) == (
        f"secagg.max-samples is {largest - 1}; allowed: at least {largest}, the training samples"
        f" of client {sizes.index(largest)}"
    )
    (line,) = sizes_told(largest - 1, **{"min-success": 0.75})
    assert line.endswith(f"of client {sizes.index(largest)}: such clients refuse every round")
    assert sizes_told(largest) == sizes_told(10 * largest) == []
    assert sizes_told(1, **{"dp.clip": 1.0, "dp.noise": 1.0, "dp.trained-down": True}) == []
    assert sizes_told(1, **{"secagg.enabled": False}) == []


def test_a_coarse_rounding_is_told_by_the_formula_of_the_page_on_privacy() -> None:
    sizes = [len(s.train) for s in DataSetup(run_config(KEYS).experiment).partition.clients]
    assert len({*sizes}) == 1
    bound = 2 * 0.5 * 3 / 2**22 / (3 * sizes[0] / 10_000)
    assert sizes_told(10_000, **{"secagg.clip": 0.5, "participation": 0.75}) == [
        f"warning: secagg.max-samples is 10000, and the largest client has {sizes[0]} training"
        f" samples: a round's mean is rounded by up to {bound:.2g}"
    ]
