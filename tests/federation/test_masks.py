"""The masks of secure aggregation, beside Flower's own."""

from __future__ import annotations

import numpy as np
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from pfedlora_flwr.federation.secure import masks
from pfedlora_flwr.federation.secure.guard import MODULUS


def test_masks_depend_on_all_of_their_seed_and_flowers_on_32_bits_of_it() -> None:
    """When upstream folds no more, `federation/secure/masks.py` can go."""
    one = bytes(range(32))
    other = one[4:8] + one[:4] + one[8:]  # the same words in another order: the same exclusive or
    for draw, folds in ((pseudo_rand_gen, True), (masks.masks, False)):
        a, b = (draw(seed, MODULUS, [(64,)])[0] for seed in (one, other))
        assert np.array_equal(a, b) == folds, draw.__module__
        assert np.array_equal(a, draw(one, MODULUS, [(64,)])[0])


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
