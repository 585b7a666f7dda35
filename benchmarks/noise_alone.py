"""A control of differential privacy: the server's noise, and no update in it."""

from __future__ import annotations

from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora_plus import PFedLoRAPlus
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class NoiseAlone(PFedLoRAPlus):
    """pFedLoRA+ whose clients train as ever, and send back what they received: the shared adapter
    is the sum of the rounds' noise. What it gains, no client's data has given."""

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        sent = super().local_update(model, received, data, visit)
        return Upload(received, sent.samples)
