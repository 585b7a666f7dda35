"""FD: whole rounds against a slow loop, with means taken while training, and a server that
remembers what the *other* holders sent."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Tensors, Upload
from tests.methods import slow, slow_server
from tests.plain import maker

method = maker({"method": "fd", "models": "cnn5", "batch-size": 8})


def report(rows: dict[int, list[float]], samples: int) -> Upload:
    return Upload(
        {
            "classes": torch.tensor(sorted(rows)),
            "means": torch.tensor([rows[c] for c in sorted(rows)]),
        },
        samples,
    )


def as_dict(tensors: dict[str, torch.Tensor]) -> dict[int, list[float]]:
    return dict(zip(tensors["classes"].tolist(), tensors["means"].tolist(), strict=True))


KEYS = {"method": "fd", "seed": slow_server.SEED, "fd.lambda": 2.5}
WRONG = ("hard", "sum", "last epoch")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        known = dict(zip(received["classes"].int().tolist(), received["means"], strict=True))
        seen: list[tuple[int, Tensor]] = []

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits = slow.layer(kept, "fc3", slow.extract(kept, x))
            total = cross_entropy(logits, y)
            for row, c in zip(logits, y.tolist(), strict=True):
                seen.append((c, row.detach()))
                if c in known:
                    target = known[c].softmax(0)
                    if wrong == "hard":
                        target = (target == target.max()).double()
                    distance = -(target * row.log_softmax(0)).sum()
                    total = total + 2.5 * distance / (1 if wrong == "sum" else len(y))
            return total

        slow_server.descend(kept, client, loss)
        taken = seen[-len(client.y) :] if wrong == "last epoch" else seen
        held = sorted({c for c, _ in taken})
        means = [torch.stack([row for y, row in taken if y == c]).mean(0) for c in held]
        return {"classes": torch.tensor(held).double(), "means": torch.stack(means)}

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        return slow_server.remembered(sent, state)

    def download(state: Tensors, client: int) -> Tensors:
        return slow_server.merged(state, 10, but=client)

    return slow.largest_difference(turn, server, download, **KEYS)


def test_server_agrees_with_a_plain_memory_over_rounds_of_changing_clients() -> None:
    """Clients come late, miss rounds and come back: the last means of each count, whenever they
    were sent and of however many samples."""
    random, fd = np.random.default_rng(0), method(classes=6)
    state, memory = fd.state_init(0), {}
    for round in range(1, 9):
        uploads = {}
        for k in sorted(random.choice(7, 3, replace=False).tolist()):
            held = random.choice(6, random.integers(1, 5), replace=False).tolist()
            uploads[k] = report(
                {c: random.normal(size=6).astype(np.float32).tolist() for c in held}, 10**k
            )
            memory[k] = as_dict(uploads[k].tensors)
        state = fd.aggregate(uploads, state, round)
        for k in range(8):
            others = {
                c: [memory[j][c] for j in memory if j != k and c in memory[j]] for c in range(6)
            }
            expected = {c: np.mean(rows, axis=0) for c, rows in others.items() if rows}
            got = as_dict(fd.download(state, k, round + 1))
            assert list(got) == list(expected)
            for c, mean in expected.items():
                np.testing.assert_allclose(
                    got[c], mean, rtol=1e-6, err_msg=f"round {round}, client {k}, class {c}"
                )
