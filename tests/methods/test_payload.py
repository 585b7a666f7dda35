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

WHOLE, BODY, LAST = (2_621_558, 2_666_648), (2_616_548, 2_616_548), (5_010, 50_100)
"""A model, its extractor and its last layer, of 10 and of 100 classes."""
EQUAL = {
    "heterogeneous": {
        "pfedlora": (30_670, 36_160),
        "fml": (670_058, 715_148),
        "lg_fedavg": LAST,
        "standalone": (0, 0),
        "fedmrl": (465_658, 474_748),
        "pfedes": (443, 443),
        "pfedmoe": (665_048, 665_048),
        "pfedafm": (665_048, 665_048),
        "fedrod": LAST,
    },
    "homogeneous": {
        "pfedlora": (120_670, 126_160),
        **dict.fromkeys(("fml", "fedavg", "fedprox", "ditto", "fedrod", "fedbn"), WHOLE),
        **dict.fromkeys(("apfl", "fedala"), WHOLE),
        **dict.fromkeys(("pfedmoe", "pfedafm", "fedper", "fedrep", "fedbabu"), BODY),
        "lg_fedavg": LAST,
        "standalone": (0, 0),
        "fedmrl": (1_817_158, 1_826_248),
        "pfedes": (443, 443),
    },
}
"""Parameters up, of 10 and 100 classes, and as many down."""
CLASS_MEANS = [
    *(("fd", 10, 2, 20, 100), ("fd", 100, 10, 1_000, 10_000)),
    *(("fedssa", 10, 2, 1_002, 5_010), ("fedssa", 100, 10, 5_010, 50_100)),
    *((name, 10, 2, 1_000, 5_000) for name in ("fedproto", "fedtgp", "fedorgp")),
    *((name, 100, 10, 5_000, 50_000) for name in ("fedproto", "fedtgp", "fedorgp")),
]
"""Method, classes, classes held, parameters up, and down once every class has been reported."""
HEADER_DOWN = [
    *(("fedgh", 10, 2, 1_000, 5_010), ("fedgh", 100, 10, 5_000, 50_100)),
    *(("fedre", 10, 2, 510, 5_010), ("fedre", 100, 10, 600, 50_100)),
    *(("pfedlora_plus", 10, 2, 122, 610), ("pfedlora_plus", 100, 10, 610, 6_100)),
]
"""The same of methods that send a header, or an adapter, down from the first round on."""
OF_SUMS = [
    *(("fedncm", 10, 2, 1_002, 5_010), ("fedncm", 100, 10, 5_010, 50_100)),
    *((name, 10, 2, 126_252, 130_260) for name in ("fedlda", "fedridge")),
    *((name, 100, 10, 130_260, 175_350) for name in ("fedlda", "fedridge")),
]
"""The same of methods of sums: m (d + 1) + d (d + 1) / 2 up, C (d + 1) + d (d + 1) / 2 down."""
FIRST = [
    *(
        (name, setting, classes, 2, counted, counted)
        for setting, methods in EQUAL.items()
        for name, both in methods.items()
        for classes, counted in zip((10, 100), both, strict=True)
    ),
    *((row[0], setting, *row[1:]) for row in HEADER_DOWN for setting in SETTINGS),
    *((row[0], "homogeneous", *row[1:]) for row in OF_SUMS),
]
"""Method, setting, classes, classes held, parameters up and down in a first visit."""
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
    assert {row[0] for row in FIRST + CLASS_MEANS} | {LESS_THAN_FML} == set(ANY_MODEL)


@pytest.mark.parametrize(("name", "setting", "classes", "held", "up", "down"), FIRST)
def test_what_a_first_visit_sends_and_receives(
    name: str, setting: str, classes: int, held: int, up: int, down: int
) -> None:
    _, received, upload = first_visit(name, setting, classes, held)
    assert (parameters(received), parameters(upload.tensors)) == (down, up)


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


@pytest.mark.slow
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
