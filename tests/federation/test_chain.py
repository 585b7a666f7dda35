"""The chain for uploads: where a link stands, and that one on both sides of the wire does the same
under masks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from pfedlora_flwr import config
from pfedlora_flwr.features.links import LINKS
from pfedlora_flwr.features.masks import plan
from pfedlora_flwr.federation import chain
from pfedlora_flwr.federation.chain import Chain
from pfedlora_flwr.federation.link import Link
from pfedlora_flwr.federation.messages import Report
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.clear import in_the_clear
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.training.loop import Visit
from tests.conftest import ROOT, keys_in, run_locally

BOUND, ADDED = 0.01, 0.25
KEYS = keys_in(
    "clients=3 rounds=1 evaluate-initial=false partition.kind=iid dataset=synthetic:60 "
    "models=tests.methods.narrow:Narrow adapter.hidden-dim=4 lr=0.5"
)


DP = {"dp.clip": 1, "dp.noise": 1, "adapter.down": "fixed"}
RECORDS = {
    "method": "pfedlora_plus",
    "adapter.predict": "sum",
    "adapter.rows": "samples",
} | keys_in("train=head normalise=model dp.level=record dp.clip=1 dp.noise=1")
ON_A_CLIENT = ("OfRecords", "Clipped", "Masks")


def distance(one: Tensors, other: Tensors) -> float:
    return sum(float((one[name] - other[name]).square().sum()) for name in other) ** 0.5


class Bounded(Link):
    """The difference from what was received is at most this long, and all weigh the same."""

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        share = min(1.0, BOUND / distance(upload.tensors, received))
        tensors = {
            name: received[name] + share * (tensor - received[name])
            for name, tensor in upload.tensors.items()
        }
        return Upload(tensors, 1)


class Moved(Link):
    """The mean of the three clients is moved."""

    def server_out(
        self, merged: Tensors, uploads: Mapping[int, Upload], state: Tensors, round: Round
    ) -> Tensors:
        assert sorted(round.visits) == [0, 1, 2]
        return {name: tensor + ADDED for name, tensor in merged.items()}


@pytest.mark.slow
def test_links_on_a_client_and_on_the_server_do_the_same_under_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "LINKS", (Bounded, *LINKS, Moved))
    # of a link whose uploads all weigh 1 it knows nothing
    monkeypatch.setattr(plan, "of_sizes", lambda config, partition: [])

    def state_after(name: str, **keys: object) -> Tensors:
        done = run_locally(tmp_path / name, KEYS | keys)
        assert done.code == 0, done.stderr
        state = RunDirectory(done.output).checkpoints.load()
        assert state is not None
        return state.tensors

    plain = state_after("plain", **{"audit.uploads": True})
    kept = RunDirectory(tmp_path / "plain").uploads
    uploads = [kept.read(1, client) for client in kept.clients(1)]
    assert [upload.samples for upload in uploads] == [1, 1, 1]
    for upload in uploads:
        assert distance(upload.tensors, kept.state(1)) == pytest.approx(BOUND, rel=1e-3)
    for name, tensor in plain.items():
        mean = torch.stack([upload.tensors[name] for upload in uploads]).mean(0)
        torch.testing.assert_close(tensor, mean + ADDED)
    masked = state_after("masked", **{"secagg.enabled": True, "secagg.max-samples": 1})
    torch.testing.assert_close(masked, plain, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("keys", "links"),
    [
        ({}, "Outliers"),
        ({"audit.uploads": True}, "Outliers KeptUploads"),
        ({"secagg.enabled": True, "clip-norm-factor": 0}, "Masks"),
        (DP | {"audit.uploads": True}, "Clipped KeptUploads Noised"),
        (DP | {"secagg.enabled": True}, "Clipped Masks Noised"),
        (RECORDS, "OfRecords Outliers"),
    ],
)
def test_a_run_has_the_links_that_its_keys_ask_for_in_their_order(
    keys: dict[str, Any], links: str
) -> None:
    run = config.run_config(keys)
    e = run.experiment
    assert [link.__name__ for link in LINKS if link.is_used(e, run.execution)] == links.split()
    on_a_client = [link.__name__ for link in LINKS if link.is_used(e, None)]
    assert on_a_client == [name for name in links.split() if name in ON_A_CLIENT]


def test_a_link_sees_the_uploads_that_those_before_it_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class First(Link):
        def refused(self, uploads: Mapping[int, Upload]) -> Mapping[int, str]:
            return {min(uploads): f"the first of {sorted(uploads)}"}

    monkeypatch.setattr(chain, "LINKS", (First, First))
    links: Any = Chain(config.from_flat({}), None)
    assert links.refused(dict.fromkeys((4, 5, 6), Upload({}, 1))) == {
        4: "the first of [4, 5, 6]",
        5: "the first of [5, 6]",
    }


def test_the_privacy_page_lists_what_travels_in_the_clear_under_masks() -> None:
    page = (ROOT / "docs" / "privacy" / "secure-aggregation.md").read_text(encoding="utf-8")
    listed = page.partition("**In the clear, of each client's visit**")[2].partition("\n- **")[0]
    masked = config.from_flat({"secagg.enabled": True})
    always, told = (in_the_clear(masked, scores_told=told) for told in (False, True))
    assert told - always == {field.name for field in fields(Counts)} - {"confusion"}
    hidden = {field.name for field in fields(Report)} - told - {"counts"}
    by_line = {"always": always, "`scores=told`": told - always, "never": hidden}
    for line, named in by_line.items():
        [row] = [row for row in listed.splitlines() if row.lstrip().startswith(f"| {line} |")]
        assert {*re.findall(r"`(\w+)`", row.partition("|")[2].partition("|")[2])} == named
