"""Operations: the worked example to the unit, and every count against PyTorch's own counter."""

from __future__ import annotations

import copy
import itertools
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.flop_counter import FlopCounterMode

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import fedkd
from pfedlora_flwr.models import linear
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.cnn import SHAPES
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.flops import Operations, count_operations
from tests.plain import CELLS, SUMS, make, samples, visit


@pytest.fixture(autouse=True)
def _plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's counter does not know oneDNN's products."""
    monkeypatch.setattr(linear, "_AVAILABLE", False)


def spent(method_name: str, n: int, **keys: object) -> dict[str, int]:
    method = make(from_flat({"method": method_name, "batch-size": 4, **keys}))
    made = visit(method.experiment)
    data = samples([i % 3 for i in range(n)])
    method.local_update(
        method.private_init(0, 1), method.download(method.state_init(1), 0, 1), data, made
    )
    return made.flops


def test_the_worked_example() -> None:
    """CNN-1, C=10, h=60, E=1, a sample: Standalone 27,073,200; pFedLoRA 27,195,600 and
    9,765,200."""
    assert spent("standalone", 1) == {"model": 27_073_200}
    assert spent("pfedlora", 1) == {"model": 27_195_600, "adapter": 9_765_200}


@pytest.mark.slow
def test_operations_grow_with_samples_and_epochs_and_cached_features_are_counted_once() -> None:
    assert spent("standalone", 10, **{"local-epochs": 3}) == {"model": 27_073_200 * 10 * 3}
    features, step = 2 * 4_820_800, 9_765_200 - 2 * 4_820_800
    assert spent("pfedlora", 10, **{"local-epochs": 3}) == {
        "model": 27_195_600 * 30,
        "adapter": 10 * features + 30 * step,
    }


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("name", list(SHAPES))
def test_models_against_torch(name: str, classes: int) -> None:
    model, images = build(name, Task(classes)), torch.randn(3, 3, 32, 32)
    agrees(model, images)


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(
    ("kind", "width", "hidden"), [("reduced", 2000, 300), ("decomposed", 500, 60)]
)
def test_adapters_against_torch(kind: str, width: int, hidden: int, wants_gradient: bool) -> None:
    agrees(Adapter(width, hidden, 10, kind), torch.randn(3, width, requires_grad=wants_gradient))
    frozen = Adapter(width, hidden, 10, kind).requires_grad_(False)
    agrees(frozen, torch.randn(3, width, requires_grad=True))


def test_layers_called_by_keyword_count_as_by_place() -> None:
    layers = nn.Linear(7, 7), nn.GRU(7, 7), nn.Conv1d(5, 4, 3), linear.Linear(7, 7)
    for layer, wants_gradient in itertools.product(layers, (False, True)):
        inputs = torch.randn(5, 7, requires_grad=wants_gradient)
        with count_operations() as by_place:
            layer(inputs)
        with count_operations() as by_keyword:
            layer(input=inputs)
        assert by_keyword == by_place != Operations()


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_recurrent_layers_by_hand(layers: int, directions: int, wants_gradient: bool) -> None:
    """A GRU has 3 gates: each reads the inputs, [B, T, 5], or the layer below, and its own state, 7
    numbers a direction."""
    module = nn.GRU(5, 7, layers, batch_first=True, bidirectional=directions == 2)
    reads = [5 if layer == 0 else 7 * directions for layer in range(layers)]
    forward = 2 * 11 * directions * sum(3 * 7 * (width + 7) for width in reads)
    inputs = torch.randn(2, 11, 5, requires_grad=wants_gradient)
    with count_operations() as ours:
        module(inputs)
    assert ours.forward == 2 * forward
    of_inputs = 2 * 11 * directions * 3 * 7 * 5
    assert ours.backward == 2 * (forward + forward - (0 if wants_gradient else of_inputs))
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(2, 11, 5), torch.tensor([11, 4]), batch_first=True
    )
    with torch.no_grad(), count_operations() as ours:
        module(packed)
    assert ours.forward == 2 * forward // 22 * 15


@pytest.mark.parametrize(
    "layer",
    [nn.RNN(5, 7, 3), nn.LSTM(5, 7), nn.LSTM(5, 7, 3, bidirectional=True, proj_size=4)],
)
def test_recurrent_layers_use_each_weight_once_a_step(layer: nn.RNNBase) -> None:
    with torch.no_grad(), count_operations() as ours:
        layer(torch.randn(11, 2, 5))
    weights = (p.numel() for name, p in layer.named_parameters() if name.startswith("weight"))
    assert ours.forward == 2 * 11 * 2 * sum(weights)


class Attends(nn.Module):
    """Attention over [B, T, width], the queries from the first half of the tokens."""

    def __init__(self, need_weights: bool, half: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True)
        self.need_weights, self.fewer = need_weights, half

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        asked = tokens[:, : tokens.shape[1] // 2] + 0 if self.fewer else tokens
        return self.attention(asked, tokens, tokens, need_weights=self.need_weights)[0]


def test_pytorchs_fused_attention_counts_as_its_parts_do() -> None:
    """In evaluation it is one operator, of which PyTorch's own counter sees nothing."""
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True).eval()
    encoder, tokens = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, 12)
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    each = 2 * (4 * 12 * 12 + 2 * 12 * 20)  # a token's, of its matrices
    for module in (Attends(True, False).eval(), layer, encoder):
        counted = []
        for fused in (True, False):
            torch.backends.mha.set_fastpath_enabled(fused)
            with torch.no_grad(), count_operations() as ours:
                module(tokens)
            counted.append(ours.total)
        assert counted[0] == counted[1] > 0
        torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad(), count_operations() as ours:
        encoder(tokens, src_key_padding_mask=padded)
    assert ours.total == 2 * ((6 + 4) * each + 2 * 2 * (36 + 16) * 12), "of the tokens there are"


@pytest.mark.parametrize("fused", [True, False])
def test_a_vision_transformer_against_torch(fused: bool) -> None:
    vit = pytest.importorskip("timm").create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_classes=5
    )
    for block in vit.blocks:
        block.attn.fused_attn = fused
    agrees(vit, torch.randn(2, 3, 32, 32))
    for parameter in vit.parameters():
        parameter.requires_grad_(False)
    vit.head.requires_grad_(True)
    agrees(vit, torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_text_transformer_against_torch(attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    about = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    bert = transformers.BertModel(about, add_pooling_layer=False)
    bert.set_attn_implementation(attention)

    class Text(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return bert(tokens).last_hidden_state

    agrees(Text(), torch.randint(0, 50, (2, 7)))


class LowRank(nn.Linear):
    """A frozen layer with LoRA in its own forward, as loralib writes it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(3, inputs))
        self.b = nn.Parameter(torch.randn(outputs, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias) + x @ self.a.T @ self.b.T


class SelfWeighed(nn.Conv2d):
    """A layer that first weighs its input by products of it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.flatten(1)
        return super().forward((rows @ rows.T @ rows).view_as(input))


def test_layers_with_a_forward_of_their_own_against_torch() -> None:
    """Subclasses, and a layer of which the forward was replaced."""
    for shape in ((4, 7), (2, 4, 7)):
        agrees(LowRank(7, 5), torch.randn(shape))
        agrees(nn.Sequential(nn.Linear(7, 7), LowRank(7, 5)), torch.randn(shape))
    agrees(SelfWeighed(2, 3, 2), torch.randn(4, 2, 5, 5, requires_grad=True))
    twice = nn.Linear(6, 6)
    twice.forward = lambda input: nn.Linear.forward(twice, input @ twice.weight)  # type: ignore[method-assign]
    agrees(twice, torch.randn(4, 6))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Linear(6, 5), "weight"),
        (nn.Conv2d(6, 4, 3, groups=2), "weight"),
        (nn.GRU(6, 4, 2, bidirectional=True), "weight_hh_l0"),
        (nn.LSTM(6, 4, proj_size=3), "weight_hh_l0"),
    ],
)
def test_counting_changes_no_parametrized_layer(layer: nn.Module, name: str) -> None:
    """Each read of such a weight in training is a step of its power iteration."""
    plain = copy.deepcopy(layer)
    spectral_norm(layer, name)
    uncounted, layer = copy.deepcopy(layer), copy.deepcopy(layer)
    inputs = torch.randn(3, 6, 6, 6) if isinstance(layer, nn.Conv2d) else torch.randn(3, 6)
    uncounted(inputs)
    with count_operations() as ours:
        layer(inputs)
    for key, tensor in uncounted.state_dict().items():
        assert torch.equal(layer.state_dict()[key], tensor), key
    with count_operations() as of_plain:
        plain(inputs)
    assert ours == of_plain
    layer.requires_grad_(False)
    plain.requires_grad_(False)
    inputs.requires_grad_()
    with count_operations() as ours:
        layer(inputs)
    with count_operations() as of_plain:
        plain(inputs)
    assert ours == of_plain


class Lora(nn.Module):
    """W + B A, as a parametrization."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3, inputs))
        self.b = nn.Parameter(torch.randn(outputs, 3))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.b @ self.a


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(7, 5), (2, 7)),
    (nn.Conv1d(3, 4, 5), (2, 3, 20)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 20)),
    (nn.Conv2d(3, 4, 3), (2, 3, 9, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 9)),
    (nn.Conv3d(2, 4, 3), (2, 2, 6, 6, 6)),  # which have no layer of their own here
    (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    *((Attends(*how), (2, 6, 12)) for how in itertools.product((False, True), repeat=2)),
    (weight_norm(nn.Conv1d(4, 6, 3)), (2, 4, 9)),
    (nn.Linear(7, 5).requires_grad_(False), (4, 7)),
]
register_parametrization(LAYERS[-1][0], "weight", Lora(5, 7))


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
def test_layers_against_torch(
    layer: nn.Module, shape: tuple[int, ...], wants_gradient: bool
) -> None:
    agrees(layer, torch.randn(shape, requires_grad=wants_gradient))


def test_what_runs_in_no_module_is_not_counted() -> None:
    layer, rows = nn.Linear(4, 3), torch.randn(2, 4)
    with count_operations() as ours:
        (layer(rows) @ torch.randn(3, 9)).sum().backward()
    assert ours.total == 2 * 2 * 2 * 4 * 3, "the layer's, and its weight's gradient"


def agrees(module: nn.Module, inputs: torch.Tensor) -> None:
    """Forward alone, then forward and backward."""
    with torch.no_grad(), FlopCounterMode(display=False) as theirs, count_operations() as ours:
        module(inputs)
    assert (ours.forward, ours.backward) == (theirs.get_total_flops(), 0)
    with FlopCounterMode(display=False) as theirs, count_operations() as ours:
        module(inputs).sum().backward()
    assert ours.total == theirs.get_total_flops()
    assert ours.backward > 0


ONCE = [
    (name, setting)
    for name, setting in CELLS
    if name not in SUMS  # which factor a matrix
    if setting == "heterogeneous" or name == "pfedlora" or (name, "heterogeneous") not in CELLS
]
"""A visit is the same in both settings, but for pFedLoRA's adapter."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), ONCE)
def test_whole_visits_against_torch(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a client's training executes. (FedKD's compression is no training: it is left out on
    both sides.)"""
    monkeypatch.setattr(fedkd, "compress", lambda tensors, energy: tensors)
    monkeypatch.setattr(fedkd, "decompress", lambda sent, like: sent)
    with FlopCounterMode(display=False) as counter:
        # batches of 4, 4 and 2
        ours = spent(name, 10, setting=setting, models="cnn5", **{"local-epochs": 2})
    assert sum(ours.values()) == counter.get_total_flops()


def test_a_layer_that_raises_or_is_called_by_its_own_name_leaves_the_count_as_it_is() -> None:
    class Own(nn.GRU):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # as users write it
            return super().forward(x)[0]

    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong, self.right, self.own = nn.Linear(9, 3), nn.Linear(4, 3), Own(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            with suppress(RuntimeError):
                return self.wrong(x)
            return self.own(x=self.right(x))

    with count_operations() as seen:
        Trying()(torch.randn(2, 7, 4))
    assert seen.forward == 2 * 14 * (4 * 3 + 3 * 5 * (3 + 5))
