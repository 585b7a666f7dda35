"""DP-SGD on an adapter: its gradients beside autograd's, one record at a time; its batches and its
noise; and what an upload depends on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.pretrained import frozen_encoder
from pfedlora_flwr.models.private import clipped_sum, parts_of, train
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.summed import Summed
from pfedlora_flwr.training import entropy
from pfedlora_flwr.training.loop import Noise, Samples
from tests.conftest import keys_in
from tests.methods.test_pfedlora_sum import KEYS
from tests.models.bases import base
from tests.plain import Plain
from tests.plain import visit as visit_of

STANDARD_ERRORS = 4.5
"""Beyond which a statistic of honest draws lies once in 150,000 times."""
RECORDS: dict[str, object] = KEYS | keys_in(
    "normalise=model adapter.predict=sum adapter.rows=samples adapter-epochs=1 batch-"
    "size=1000 momentum=0.0 dp.level=record dp.clip=0.1 dp.noise=1.0"
)


def adapter_of(seed: int, trained: bool, scale: float = 1.0) -> Adapter:
    torch.manual_seed(seed)
    adapter = Adapter(7, 3, 5).double()
    adapter.scale = scale
    adapter.down.requires_grad_(trained)
    return adapter


def records(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-2, 1.5, n, dtype=torch.float64)[:, None]
    return sizes * torch.randn(n, 7, generator=draws).double(), torch.arange(n) % 5


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_sum_of_clipped_gradients_is_autograds_one_record_at_a_time(
    trained: bool, scale: float
) -> None:
    adapter, (inputs, labels) = adapter_of(0, trained, scale), records(40)
    names = [name for name, p in adapter.named_parameters() if p.requires_grad]
    wanted = {name: torch.zeros_like(adapter.get_parameter(name)) for name in names}
    clip, norms = 1.0, []
    for i in range(len(labels)):
        loss = cross_entropy(adapter(inputs[i : i + 1]), labels[i : i + 1])
        own = torch.autograd.grad(loss, [adapter.get_parameter(name) for name in names])
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in own)))
        for name, gradient in zip(names, own, strict=True):
            wanted[name] += gradient * min(1.0, clip / norms[-1])
    assert min(norms) < clip < max(norms), "both cases must be there"
    found = clipped_sum(adapter, inputs, labels, clip)
    assert sorted(found) == sorted(names)
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-11, atol=1e-12)


def test_a_record_moves_the_sum_by_at_most_the_clip_even_if_it_is_not_finite() -> None:
    adapter, (inputs, labels) = adapter_of(1, trained=True), records(30)
    whole = clipped_sum(adapter, inputs, labels, 0.3)
    for i in range(30):
        others = torch.arange(30) != i
        without = clipped_sum(adapter, inputs[others], labels[others], 0.3)
        moved = math.sqrt(sum(float((whole[n] - without[n]).square().sum()) for n in whole))
        assert 0 < moved <= 0.3 * (1 + 1e-9)
        for value in (math.nan, math.inf, 1e200):
            spoilt = inputs.clone()
            spoilt[i] = value
            found = clipped_sum(adapter, spoilt, labels, 0.3)
            for name in whole:
                torch.testing.assert_close(found[name], without[name], rtol=0, atol=1e-12)
    empty = clipped_sum(adapter, inputs[:0], labels[:0], 0.3)
    assert not any(bool(total.any()) for total in empty.values())


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_a_batch_takes_each_record_by_itself_with_probability_one_in_parts(parts: int) -> None:
    count = 200_000
    drawn = entropy.one_in(parts, count).astype(float)
    share = 1 / parts
    assert abs(drawn.mean() - share) <= STANDARD_ERRORS * math.sqrt(share * (1 - share) / count)
    if parts > 1:
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < STANDARD_ERRORS / count**0.5
        assert (entropy.one_in(parts, count) != drawn).any()
    assert [parts_of(n, 16) for n in (1, 16, 17, 33)] == [1, 1, 2, 3]


def test_a_step_without_noise_is_sgds_and_with_noise_is_off_by_that_noise() -> None:
    inputs, labels = records(50)
    made = visit_of(from_flat({"batch-size": 64, "momentum": 0.0}))
    ends: dict[float, Tensors] = {}
    for z in (0.0, 3.0):
        adapter = Adapter(7, 400, 5).double()
        draws = torch.Generator().manual_seed(2)
        for p in adapter.parameters():
            p.data = torch.randn(p.shape, generator=draws).double()
        adapter.down.requires_grad_(False)
        start = {name: t.clone() for name, t in adapter.state_dict().items()}
        sums = clipped_sum(adapter, inputs, labels, 0.2)
        train(made, adapter, Samples(inputs, labels), Noise(z, 0.2), 1, 0.5)
        ends[z] = dict(adapter.state_dict())
    for name, total in sums.items():
        torch.testing.assert_close(ends[0.0][name], start[name] - 0.5 * total / 50)
    noise = (ends[0.0]["up.weight"] - ends[3.0]["up.weight"]).flatten() * 50 / (0.5 * 3 * 0.2)
    size = noise.numel()
    assert abs(float(noise.mean())) < STANDARD_ERRORS / size**0.5
    assert abs(float(noise.var()) - 1) < STANDARD_ERRORS * (2 / size) ** 0.5
    assert torch.equal(ends[3.0]["down.weight"], start["down.weight"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("timm")
    return base(tmp_path_factory.mktemp("bases"), "test_resnet")


def test_an_upload_depends_on_a_record_by_its_clipped_gradients_alone(models: str) -> None:
    """Not by the head, which is trained on the same records without noise; and without noise to be
    spent nothing is trained that is sent."""
    plain = Plain(RECORDS | {"models": models})
    data, method = plain.data(1).train, plain.method
    n = len(data)

    def sent(head: float, kept: Tensor, z: float | None = 0.0) -> Tensors:
        model = method.initial_model(1)
        assert isinstance(model, Summed)
        with torch.no_grad():
            model.last_layer().weight += head
        # a record that is left out has a representation without a finite norm: no gradient
        features = Samples(data.inputs.float(), data.labels, known=_known(model, data, kept))
        noise = None if z is None else Noise(z, 0.1)
        upload, _ = visit(method, model, dict(plain.state), features, 1, 1, noise)
        assert upload.samples == n
        return upload.tensors

    every = torch.ones(n, dtype=torch.bool)
    first = sent(0.0, every)
    for name, tensor in sent(5.0, every).items():
        assert torch.equal(tensor, first[name])
    for i in (0, n - 1):
        one = every.clone()
        one[i] = False
        moved = [(first[name] - tensor).square().sum() for name, tensor in sent(0.0, one).items()]
        rate = plain.experiment.lr
        assert 0 < math.sqrt(float(sum(moved))) <= rate * 0.1 / n * 1.001
    noised = sent(0.0, every, 1.0)
    assert all((noised[name] != first[name]).all() for name in noised)
    for name, tensor in sent(0.0, every, None).items():
        assert torch.equal(tensor, plain.state[name])


def _known(model: Summed, data: Samples, kept: Tensor) -> tuple[torch.nn.Module, Tensor]:
    encoder = frozen_encoder(model)
    assert encoder is not None
    with torch.no_grad():
        found = encoder.eval().encode(data.batch(slice(None)))
    return encoder.module, found.masked_fill(~kept[:, None], math.nan)


@pytest.mark.parametrize("own", ["tests.methods.narrow:Narrow", "neck"])
def test_a_model_that_trains_something_before_its_head_is_refused(models: str, own: str) -> None:
    plain = Plain(RECORDS | {"models": models})
    if own == "neck":
        plain.method.__dict__["built_width"] = 12
        told = "or trains something before its head"
    else:
        plain.method.model_names = (ModelSpec(own),)
        told = f"model '{own}' has no frozen encoder"
    with pytest.raises(UserError, match=told):
        plain.method.private_init(0, 0)


def test_a_method_that_inherits_it_may_send_more_and_is_refused() -> None:
    options = " ".join(f"{n}={RECORDS[n]}" for n in ("adapter.predict", "adapter.rows"))
    with pytest.raises(UserError, match="NoiseAlone does not say that what it sends reveals a"):
        from_flat(
            {n: v for n, v in RECORDS.items() if not n.startswith("adapter")}
            | {"method": "benchmarks.dp_utility:NoiseAlone", "method-options": options}
        )
