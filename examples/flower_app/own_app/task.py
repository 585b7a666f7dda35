"""What both sides use: the keys of the run, and a model of your own."""

from __future__ import annotations

from flwr.app import Context
from torch import Tensor, nn

from pfedlora_flwr.config import run_config
from pfedlora_flwr.execution import RunConfig


class Net(nn.Module):
    """A small CNN for images of 3 × 32 × 32."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 7 * 7, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))


def config_of(context: Context) -> RunConfig:
    """The keys of pfedlora-flwr from the app's own."""
    own = context.run_config
    return run_config(
        {
            "method": own["method"],
            "clients": own["num-clients"],
            "rounds": own["num-rounds"],
            "output": own["output"],
            "resume": own["resume"],
            "models": "own_app.task:Net,cnn5",
            "dataset": "digits",
            "partition.kind": "iid",
        }
    )
