"""A federation written from the papers' equations alone, slow and obvious, in float64: what whole
rounds of the methods are held to.

The rate is small: at a large one a rounding that turns a maximum of the pooling is amplified to a
thousandth within two rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.rng import torch_generator
from tests.conftest import keys_in
from tests.plain import Plain

WORLD: dict[str, object] = keys_in(
    "dataset=synthetic:54 clients=3 participation=0.67 partition.kind=dirichlet seed=21 "
    "models=cnn4,cnn5 batch-size=8 local-epochs=2 lr=0.02 momentum=0.9 weight-decay=0.01"
)
"""Two of three clients a round. With this seed two rounds see all of them, one twice, whose last
batch is of one sample."""


@dataclass
class Client:
    """One client's turn: its data, the generator of its visit, and SGD. `losses`: each phase's mean
    loss in its last epoch."""

    e: Experiment
    x: Tensor
    y: Tensor
    generator: torch.Generator
    round: int
    losses: list[float] = field(default_factory=list)

    def sgd(
        self,
        parameters: list[Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        epochs: int | None = None,
        lr: float | None = None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """E epochs of PyTorch's own SGD, in place; `after` is done after each step."""
        for p in parameters:
            p.requires_grad_(True)
        optimizer = torch.optim.SGD(
            parameters, lr or self.e.lr, self.e.momentum, weight_decay=self.e.weight_decay
        )
        for _ in range(epochs or self.e.local_epochs):
            total = 0.0
            for index in torch.randperm(len(self.y), generator=self.generator).split(
                self.e.batch_size
            ):
                optimizer.zero_grad()
                found = loss(self.x[index], self.y[index])
                found.backward()
                total += found.item() * len(index) / len(self.y)
                optimizer.step()
                with torch.no_grad():
                    after()
        self.losses.append(total)
        for p in parameters:
            p.requires_grad_(False)


Turn = Callable[[Tensors, Tensors, Client], Tensors]
"""What the client keeps (changed in place), what it has received, its turn → what it sends."""


Server = Callable[[dict[int, Tensors], dict[int, int], Tensors, int], Tensors]
"""What the clients have sent, their n_k, the server's last state, the round → its next state."""


def mean_by_samples(
    sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
) -> Tensors:
    """Σ n_k θ_k / Σ n_k."""
    return {
        name: sum(sent[k][name] * counts[k] for k in sent) / sum(counts.values()) for name in state
    }


def largest_difference(
    turn: Turn,
    server: Server = mean_by_samples,
    download: Callable[[Tensors, int], Tensors] = lambda state, client: state,
    *,
    rounds: int = 2,
    prepare: Callable[[nn.Module], object] = lambda module: None,
    **keys: object,
) -> float:
    """Of any tensor that is received, sent or kept, and of any loss that is told, between our
    method and the slow one: norm of the difference / norm.

    download: the server's state, a client → what it receives.

    `prepare` changes what a client keeps before it starts.
    """
    plain = Plain({**WORLD, **keys})
    for k in range(plain.experiment.clients):
        prepare(plain.model(k))
    state = doubled(plain.state)
    kept = {k: doubled(tensors_of(plain.model(k))) for k in range(plain.experiment.clients)}
    found, visits = [], []
    for round in range(1, rounds + 1):
        plain.train(1)
        sent, counts = {}, {}
        for k in plain.uploads:
            found.append(difference(plain.received[k], download(state, k)))
            train = plain.data(k).train
            generator = torch_generator(plain.experiment.seed, "train", k, round)
            client = Client(
                plain.experiment, train.batch(slice(None)).double(), train.labels, generator, round
            )
            sent[k], counts[k] = turn(kept[k], doubled(download(state, k)), client), len(train)
            found.append(difference(plain.uploads[k].tensors, sent[k]))
            found.append(difference(tensors_of(plain.model(k)), kept[k]))
            told = zip(plain.visits[k].losses.values(), client.losses, strict=True)
            found += [abs(ours - theirs) / abs(theirs) for ours, theirs in told]
        visits.append(set(plain.uploads))
        state = server(sent, counts, state, round)
    assert rounds < 2 or (visits[0] != visits[1] and len(visits[0] | visits[1]) == 3), (
        "choose a seed that samples all of them"
    )
    return max(
        *found, difference(plain.method.download(plain.state, 0, rounds + 1), download(state, 0))
    )


def difference(ours: Tensors, slow: Tensors) -> float:
    """The largest relative difference of any tensor."""
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in slow.items()}
    return max(
        (float((ours[n].double() - t).norm() / t.norm().clamp(min=1e-6)) for n, t in slow.items()),
        default=0.0,
    )


def doubled(tensors: Tensors) -> Tensors:
    """Copies in float64."""
    return {name: t.detach().double().clone() for name, t in tensors.items()}


def part(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors under `prefix`, the same ones, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def layer(p: Tensors, name: str, x: Tensor) -> Tensor:
    """Linear."""
    return linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def extract(p: Tensors, x: Tensor) -> Tensor:
    """A CNN up to the ReLU after FC2, in the order of the paper's table."""
    for name in ("conv1", "conv2"):
        x = max_pool2d(relu(conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"])), 2)
    return relu(layer(p, "fc2", relu(layer(p, "fc1", x.flatten(1)))))


NO_REPORTS: list[tuple[Tensors, str]] = [
    ({"means": torch.zeros(2, 499)}, "means"),
    ({"means": torch.zeros(2, 500, dtype=torch.float64)}, "float64"),
    ({"classes": torch.tensor([3, 1])}, "ascending"),
    ({"classes": torch.tensor([3, 10])}, "0 to 9"),
    ({"counts": torch.tensor([2, 3])}, "counts"),
]
"""What makes a report of two classes' means, 500 wide, no report any more, and a word of the reason
for which it is refused."""
