"""pFedLoRA+ whose shared rows begin as FedLDA's, in the same basis: does training in rounds add to
what one round of sums gives? For docs/results/one-round:

    pfedlora run -o method=fedlda … -o sums.dim=120 -o seed=S -o output=SUMS/S      # each seed
    pfedlora compare benchmarks/one-round-begun.yaml --engine local --drop-models"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedlda import FedLDA
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.moments import Sums
from pfedlora_flwr.methods.pfedlora_plus import PFedLoRAPlus
from pfedlora_flwr.runs import shared_state


class BegunFromSums(PFedLoRAPlus):
    """Class c begins with a row τ a_c / √width and a bias −½ τ μ_cᵀa_c: LDA's scores, times τ."""

    @dataclass(frozen=True)
    class Options(PFedLoRAPlus.Options):
        begun_from: str = key("sums", "a folder of FedLDA's runs by seed", name="from")
        begun_s: float = key(0.5, "s, the shrinkage", name="s", low=0, high=1)
        begun_scale: float = key(1.0, "τ, by which the scores are multiplied", name="scale", low=0)

    def state_init(self, seed: int) -> Tensors:
        state = super().state_init(seed)
        o = self.options
        run = shared_state.find(Path(o.begun_from) / str(self.experiment.seed))
        total = Sums.among(next(iter(run.downloads.values())))
        method = run.method()
        assert isinstance(method, FedLDA)
        a, bias = method.scores(total, o.begun_s)
        width = self.client_model(0).width ** 0.5
        return state | {
            "up.weight": (o.begun_scale * a / width).float(),
            "up.bias": (o.begun_scale * bias).float(),
        }
