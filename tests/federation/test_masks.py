"""The masks of secure aggregation, beside Flower's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context
from typing import Any

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.flower_compat import FitIns, ndarrays_to_parameters
from pfedlora_flwr.federation.secure import masks
from pfedlora_flwr.federation.secure.guard import MODULUS


@pytest.fixture(autouse=True)
def bound() -> Iterator[None]:
    with masks.bound_to(b"what was sent"):
        yield


SENT: dict[str, Any] = {
    "keys": {"method": "fedavg", "models": "cnn5"},
    "config": {"round": 3, "client": 1, "version": 2, "token": "abc", "evaluate": True}
    | {"run": "/runs/a", "names": '["w"]'},
    "arrays": [np.ones(4, np.float32)],
    "members": [4, 2, 3],
}


def received(**changed: Any) -> bytes:
    sent = SENT | changed
    ins = FitIns(ndarrays_to_parameters(sent["arrays"]), sent["config"])
    return masks.received(from_flat(sent["keys"]), ins, sent["members"])


def saying(**changed: Any) -> dict[str, Any]:
    return {"config": SENT["config"] | changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": SENT["keys"] | {"lr": 0.5}},
        {"arrays": [np.array([1, 1, 1, 1.0000001], np.float32)]},
        {"arrays": [np.ones((2, 2), np.float32)]},
        {"arrays": [np.ones(4, np.float64)]},
        {"arrays": [np.ones(2, np.float32), np.ones(2, np.float32)]},
        {"members": [2, 3]},
        *(
            saying(**{name: value})
            for name, value in {
                **{"round": 4, "token": "abd", "evaluate": False, "run": "/runs/b"},
                **{"names": '["v"]', "adapt": True, "a field of tomorrow": 1},
            }.items()
        ),
    ],
    ids=str,
)
def test_whatever_a_site_is_sent_gives_it_other_masks(changed: dict[str, Any]) -> None:
    drawn = []
    for sent in (received(), received(**changed)):
        with masks.bound_to(sent):
            drawn.append(masks.masks(b"seed" * 8, MODULUS, [(64,)])[0])
    assert not np.equal(*drawn).any()


@pytest.mark.parametrize("name", ["client", "version", "keep", "origin"])
def test_only_what_differs_by_client_in_an_honest_round_is_not_bound(name: str) -> None:
    assert received() == received(**saying(**{name: 7})) == received(members=[2, 3, 4])


def test_without_a_download_no_mask_is_drawn() -> None:
    with pytest.raises(LookupError):
        Context().run(masks.masks, b"seed" * 8, MODULUS, [(4,)])


def test_masks_depend_on_all_of_their_seed_and_flowers_on_32_bits_of_it() -> None:
    """When upstream folds no more, `federation/secure/masks.py` can go."""
    one = bytes(range(32))
    other = one[4:8] + one[:4] + one[8:]  # the same words in another order: the same exclusive or
    for draw, folds in ((pseudo_rand_gen, True), (masks.masks, False)):
        a, b = (draw(seed, MODULUS, [(64,)])[0] for seed in (one, other))
        assert np.array_equal(a, b) == folds, draw.__module__
        assert np.array_equal(a, draw(one, MODULUS, [(64,)])[0])


@pytest.mark.slow
def test_a_search_of_a_sixteenth_of_the_bits_finds_flowers_seed_and_not_ours() -> None:
    planted = bytes(range(1, 29)) + bytes(4)
    fold = np.bitwise_xor.reduce(np.frombuffer(planted, "<u4")) ^ np.uint32(40_000)
    planted = planted[:28] + int(fold).to_bytes(4, "little")  # now it folds to 40000, one of 2^16
    wanted = {
        draw.__module__: [int(x) for x in draw(planted, MODULUS, [(2,)])[0]]
        for draw in (pseudo_rand_gen, masks.masks)
    }
    found: dict[str, list[int]] = {name: [] for name in wanted}
    generator = np.random.RandomState()
    for seed in range(2**16):
        generator.seed(seed)
        drawn = generator.randint(0, MODULUS - 1, 2, dtype=np.int64).tolist()
        for name, words in wanted.items():
            if drawn == words:
                found[name].append(seed)
    assert found == {pseudo_rand_gen.__module__: [40_000], masks.__name__: []}


def test_masks_are_uniform_words_of_the_range_and_fill_their_shapes() -> None:
    drawn = masks.masks(b"seed" * 8, MODULUS, [(1,), (300, 100), ()])
    assert [a.shape for a in drawn] == [(1,), (300, 100), ()]
    words = drawn[1].ravel()
    assert words.min() >= 0
    assert words.max() < MODULUS
    assert abs(words.mean() / MODULUS - 0.5) < 0.01
    assert len(np.unique(words)) > 29_990
