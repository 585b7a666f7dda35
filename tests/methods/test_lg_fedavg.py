""" "LG-FedAvg: the last layer travels, everything before it stays."""

from __future__ import annotations

from pfedlora_flwr.methods.method import Tensors
from tests.methods import slow, slow_server

WRONG = ("own layer",)


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        for name, tensor in received.items():
            if wrong != "own layer":
                kept[f"fc3.{name}"].copy_(tensor)
        slow_server.train(kept, client)
        return {name: kept[f"fc3.{name}"].clone() for name in received}

    return slow.largest_difference(turn, method="lg_fedavg")
