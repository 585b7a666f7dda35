"""What each method puts on the wire, to the parameter, and that every method trains: both settings,
in a plain federation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.runs.ledger import parameters, payload_bytes
from tests.plain import ANY_MODEL, CELLS, SETTINGS, SUMS, Plain, make, samples, visit

AS_MUCH_DOWN_AS_UP = [
    ("pfedlora", "heterogeneous", 10, 30_670),
    ("pfedlora", "heterogeneous", 100, 36_160),
    ("fml", "heterogeneous", 10, 670_058),
    ("fml", "heterogeneous", 100, 715_148),
    ("fml", "homogeneous", 10, 2_621_558),
    ("fml", "homogeneous", 100, 2_666_648),
    ("lg_fedavg", "heterogeneous", 10, 5_010),
    ("lg_fedavg", "heterogeneous", 100, 50_100),
    ("lg_fedavg", "homogeneous", 10, 5_010),
    ("fedavg", "homogeneous", 10, 2_621_558),
    ("fedavg", "homogeneous", 100, 2_666_648),
    ("standalone", "heterogeneous", 10, 0),
    ("standalone", "heterogeneous", 100, 0),
    ("fedmrl", "heterogeneous", 10, 465_658),
    ("fedmrl", "heterogeneous", 100, 474_748),
    ("fedmrl", "homogeneous", 10, 1_817_158),
    ("fedmrl", "homogeneous", 100, 1_826_248),
    ("pfedes", "heterogeneous", 10, 443),
    ("pfedes", "heterogeneous", 100, 443),
    ("pfedes", "homogeneous", 10, 443),
    ("pfedmoe", "heterogeneous", 10, 665_048),
    ("pfedmoe", "heterogeneous", 100, 665_048),
    ("pfedmoe", "homogeneous", 100, 2_616_548),
    ("pfedafm", "heterogeneous", 10, 665_048),
    ("pfedafm", "heterogeneous", 100, 665_048),
    ("pfedafm", "homogeneous", 100, 2_616_548),
    ("fedper", "homogeneous", 10, 2_616_548),
    ("fedper", "homogeneous", 100, 2_616_548),
    ("fedrep", "homogeneous", 10, 2_616_548),
    ("fedrep", "homogeneous", 100, 2_616_548),
    ("fedprox", "homogeneous", 10, 2_621_558),
    ("fedprox", "homogeneous", 100, 2_666_648),
    ("ditto", "homogeneous", 10, 2_621_558),
    ("ditto", "homogeneous", 100, 2_666_648),
    ("fedrod", "heterogeneous", 10, 5_010),
    ("fedrod", "heterogeneous", 100, 50_100),
    ("fedrod", "homogeneous", 10, 2_621_558),
    ("fedrod", "homogeneous", 100, 2_666_648),
    ("fedbabu", "homogeneous", 10, 2_616_548),
    ("fedbabu", "homogeneous", 100, 2_616_548),
    ("fedbn", "homogeneous", 10, 2_621_558),
    ("fedbn", "homogeneous", 100, 2_666_648),
    ("apfl", "homogeneous", 10, 2_621_558),
    ("apfl", "homogeneous", 100, 2_666_648),
    ("fedala", "homogeneous", 10, 2_621_558),
    ("fedala", "homogeneous", 100, 2_666_648),
]
CLASS_MEANS = [
    ("fd", 10, 2, 20, 100),
    ("fd", 100, 10, 1_000, 10_000),
    ("fedproto", 10, 2, 1_000, 5_000),
    ("fedproto", 100, 10, 5_000, 50_000),
    ("fedssa", 10, 2, 1_002, 5_010),
    ("fedssa", 100, 10, 5_010, 50_100),
    ("fedtgp", 10, 2, 1_000, 5_000),
    ("fedtgp", 100, 10, 5_000, 50_000),
    ("fedorgp", 10, 2, 1_000, 5_000),
    ("fedorgp", 100, 10, 5_000, 50_000),
]
"""Method, classes, classes held, parameters up, and down once every class has been reported."""
HEADER_DOWN = [
    ("fedgh", 10, 2, 1_000, 5_010),
    ("fedgh", 100, 10, 5_000, 50_100),
    ("fedre", 10, 2, 510, 5_010),
    ("fedre", 100, 10, 600, 50_100),
    ("pfedlora_plus", 10, 2, 122, 610),
    ("pfedlora_plus", 100, 10, 610, 6_100),
]
"""The same of methods that send a header, or an adapter, down from the first round on."""
OF_SUMS = [
    ("fedncm", 10, 2, 1_002, 5_010),
    ("fedncm", 100, 10, 5_010, 50_100),
    *(
        (name, *row)
        for name in ("fedlda", "fedridge")
        for row in ((10, 2, 126_252, 130_260), (100, 10, 130_260, 175_350))
    ),
]
"""The same of methods of sums: m (d + 1) + d (d + 1) / 2 up, C (d + 1) + d (d + 1) / 2 down."""
LESS_THAN_FML = "fedkd"  # its ranks differ from upload to upload


def first_visit(
    name: str, setting: str, classes: int, held: int
) -> tuple[Tensors, Tensors, Upload]:
    """State, download and upload of a first visit by client 0, which holds `held` classes."""
    method = make(from_flat({"method": name, "setting": setting}), classes)
    state, data = method.state_init(1), samples([i % held for i in range(2 * held)])
    received = method.download(state, 0, 1)
    upload = method.local_update(
        method.private_init(0, 1), received, data, visit(method.experiment)
    )
    method.check(upload, state, 0)
    assert payload_bytes(upload.tensors) <= method.largest_upload(state)
    return state, received, upload


def test_every_method_is_counted() -> None:
    assert {row[0] for row in AS_MUCH_DOWN_AS_UP + CLASS_MEANS + HEADER_DOWN + OF_SUMS} | {
        LESS_THAN_FML
    } == set(ANY_MODEL)


@pytest.mark.parametrize(("name", "setting", "classes", "expected"), AS_MUCH_DOWN_AS_UP)
def test_as_much_down_as_up(name: str, setting: str, classes: int, expected: int) -> None:
    _, received, upload = first_visit(name, setting, classes, 2)
    assert (parameters(received), parameters(upload.tensors)) == (expected, expected)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("name", "classes", "held", "up", "down"), CLASS_MEANS)
def test_class_means_cost_a_row_for_each_class(
    name: str, setting: str, classes: int, held: int, up: int, down: int
) -> None:
    state, received, upload = first_visit(name, setting, classes, held)
    assert (parameters(received), parameters(upload.tensors)) == (0, up)
    keys = {"method": name, "setting": setting, "fedtgp.server-epochs": 1}
    method = make(from_flat(keys), classes)
    everything = {
        n: torch.ones(classes, *t.shape[1:]).to(t.dtype) for n, t in upload.tensors.items()
    } | {"classes": torch.arange(classes)}
    full = method.aggregate({0: upload, 1: Upload(everything, classes)}, state, 1)
    assert parameters(method.download(full, 2, 2)) == down
    assert parameters(method.download(full, 1, 2)) == (up if name == "fd" else down), (
        "FD: the other clients' classes"
    )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("name", "classes", "held", "up", "down"), HEADER_DOWN)
def test_a_header_down_and_means_up(
    name: str, setting: str, classes: int, held: int, up: int, down: int
) -> None:
    _, received, upload = first_visit(name, setting, classes, held)
    assert (parameters(received), parameters(upload.tensors)) == (down, up)


@pytest.mark.parametrize(("name", "classes", "held", "up", "down"), OF_SUMS)
def test_sums_of_the_classes_held_up_and_of_all_down(
    name: str, classes: int, held: int, up: int, down: int
) -> None:
    _, received, upload = first_visit(name, "homogeneous", classes, held)
    assert (parameters(received), parameters(upload.tensors)) == (down, up)


@pytest.mark.parametrize(
    ("setting", "fml"), [("heterogeneous", 670_058), ("homogeneous", 2_621_558)]
)
def test_fedkd_costs_less_than_fml(setting: str, fml: int) -> None:
    """At rank r, a matrix [m, n] costs r (m + n): counted from the factors' own shapes."""
    _, received, upload = first_visit(LESS_THAN_FML, setting, 10, 2)
    for sent in (received, upload.tensors):
        matrices = [(sent[n], sent[f"{n[:-2]}/v"]) for n in sent if n.endswith("/u")]
        vectors = sum(t.numel() for n, t in sent.items() if "/" not in n)
        assert (
            parameters(sent)
            == sum(len(u) * u.shape[1] + u.shape[1] * v.shape[1] for u, v in matrices) + vectors
            < fml
        )


@pytest.mark.methods
@pytest.mark.parametrize(("name", "setting"), CELLS)
def test_every_method_trains_on_digits(name: str, setting: str) -> None:
    """Four clients of five classes each, so each class has two holders; chance is 0.2."""
    models = {"models": "cnn5"} if setting == "homogeneous" else {"models": "cnn4,cnn5"}
    plain = Plain(
        method=name,
        setting=setting,
        clients=4,
        partition__classes_per_client=5,
        batch_size=16,
        participation=0.5,
        rounds=6,
        **models,
    )
    plain.train(6)
    assert all(np.isfinite(loss) for v in plain.visits.values() for loss in v.losses.values())
    assert all(torch.isfinite(t).all() for t in plain.state.values())
    assert plain.accuracy() > 0.5
    phase = "sums" if name in SUMS else "model"
    assert all(v.flops[phase] > 0 for v in plain.visits.values())
