"""What slow servers and clients of the methods that report class means have in common, a class and
a sample at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.rng import torch_generator
from tests.methods.slow import Client, extract, layer

SEED = 6
"""With one seed in ten, float32 takes another side of a ReLU or of a maximum than float64
somewhere, and that grows to a thousandth."""
TRAINED = ("conv1", "conv2", "fc1", "fc2", "fc3")


def train(kept: Tensors, client: Client) -> None:
    """SGD on the cross-entropy of a CNN's own predictions."""
    descend(kept, client, lambda x, y: own_loss(kept, x, y))


def descend(kept: Tensors, client: Client, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """SGD of a whole CNN."""
    client.sgd([kept[f"{name}.{part}"] for name in TRAINED for part in ("weight", "bias")], loss)


def own_loss(kept: Tensors, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(layer(kept, "fc3", extract(kept, x)), y)


def report(kept: Tensors, client: Client) -> Tensors:
    """The mean representation of every class that the client holds."""
    held = sorted(set(client.y.tolist()))
    means = [
        torch.stack(
            [
                extract(kept, client.x[i : i + 1])[0]
                for i in range(len(client.y))
                if client.y[i] == c
            ]
        ).mean(0)
        for c in held
    ]
    return {"classes": torch.tensor(held).double(), "means": torch.stack(means)}


def towards(
    kept: Tensors,
    received: Tensors,
    client: Client,
    distance: Callable[[Tensor, Tensor], Tensor],
    wrong: str,
) -> Tensors:
    """A visit that pulls representations towards the received rows of their classes, by twice the
    distance; then the report."""
    known = dict(zip(received["classes"].int().tolist(), received["means"], strict=True))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        total = own_loss(kept, x, y)
        for r, c in zip(extract(kept, x), y.tolist(), strict=True):
            if c in known:
                of = r.detach() if wrong == "detached" else r
                total = total + 2.0 * distance(of, known[c]) / (1 if wrong == "sum" else len(y))
        return total

    descend(kept, client, loss)
    return report(kept, client)


def remembered(sent: dict[int, Tensors], state: Tensors) -> Tensors:
    """By `client/class`, the last row that the client reported."""
    rows = {
        f"{k}/{int(c)}": row
        for k, one in sent.items()
        for c, row in zip(one["classes"], one["means"], strict=True)
    }
    return {name: row for name, row in state.items() if "/" in name} | rows


def merged(
    state: Tensors,
    width: int,
    mean: Callable[[Tensor], Tensor] = lambda rows: rows.mean(0),
    but: int | None = None,
) -> Tensors:
    """Each class and the mean of what the clients reported last, `but` for one of them."""
    by_class: dict[int, list[Tensor]] = {}
    for name, row in state.items():
        client, _, c = name.partition("/")
        if c and client != str(but):
            by_class.setdefault(int(c), []).append(row)
    means = [mean(torch.stack(by_class[c])) for c in sorted(by_class)]
    return {
        "classes": torch.tensor(sorted(by_class)).double(),
        "means": torch.stack(means) if means else torch.zeros(0, width),
    }


def rows(sent: dict[int, Tensors]) -> list[tuple[int, Tensor]]:
    """Every reported class and its row, client by client."""
    return [
        (int(c), row)
        for k in sorted(sent)
        for c, row in zip(sent[k]["classes"], sent[k]["means"], strict=True)
    ]


def batches(n: int, size: int, epochs: int, purpose: str, round: int) -> list[list[int]]:
    """The server's batches of a round, in the order of its own generator."""
    generator = torch_generator(SEED, purpose, round=round)
    return [
        index.tolist()
        for _ in range(epochs)
        for index in torch.randperm(n, generator=generator).split(size or n)
    ]


def step(parameters: list[Tensor], loss: Tensor, lr: float) -> None:
    """θ ← θ − η ∇loss, in place."""
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.data -= lr * g


def a_report(classes: list[int], seed: int = 0) -> Upload:
    """Of a client with 5 samples, with means drawn from 0 to 1."""
    means = torch.rand(len(classes), 500, generator=torch.Generator().manual_seed(seed))
    return Upload({"classes": torch.tensor(classes), "means": means}, 5)
