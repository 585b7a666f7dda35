"""pFedLoRA. Yi, Yu, Wang, Liu, Li: pFedLoRA: Model-Heterogeneous Personalized Federated Learning
with LoRA Tuning.

Symbols: ω_k is the client's model, an encoder f_k and a head h_k; θ is the adapter A that takes the
head's place and is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import ONE_WIDTH, ByClient, Method, Tensors, Upload
from pfedlora_flwr.methods.tensors import frozen, tensors_of, weighted_mean
from pfedlora_flwr.models import private
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel, Family
from pfedlora_flwr.models.registry import Facts, facts
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class PFedLoRA(Method):
    """Algorithm 1 (appendix A)."""

    title = "pFedLoRA"
    paper = "Yi et al. 2023, arXiv 2310.13283"
    idea = (
        "A low-rank adapter beside each model's head: model and adapter are trained in turn, and "
        "the adapters are averaged"
    )
    shares = "adapter"
    merges = "mean"
    assumes = ONE_WIDTH
    averages = True
    one_width = True
    adapter_type: ClassVar[type[Adapter]] = Adapter

    @dataclass(frozen=True)
    class Options(Method.Options):
        prefix: ClassVar[str | None] = ""
        adapter_kind: str = key(
            "auto",
            "reduced (after FC1) or decomposed (after FC2); auto: by the setting",
            name="adapter.kind",
            choices=("auto", "reduced", "decomposed"),
        )
        adapter_hidden_dim: int = key(
            60,
            "h, the adapter's hidden width (its rank)",
            name="adapter.hidden-dim",
            low=1,
            high=10_000,
        )
        adapter_init: str = key(
            "random",
            "random: PyTorch's default; lora: first matrix Gaussian, second zero",
            name="adapter.init",
            choices=("random", "lora"),
        )
        adapter_down: str | None = key(
            None,
            "the adapter's first matrix. trained: as in the paper. fixed (ours): orthogonal, from"
            " the seed, the same for all clients, neither trained nor sent. basis (ours, only"
            " pfedlora_plus): public principal directions, neither trained nor sent. auto:"
            " trained; for pfedlora_plus fixed, or basis if R is common",
            name="adapter.down",
            choices=("trained", "fixed", "basis"),
        )
        mu: float = key(
            0.5,
            "μ, the weight of a client's own loss (Eq. 7; the paper uses 0.5 ≤ μ < 1)",
            low=0,
            high=1,
        )
        adapter_epochs: int | None = key(
            None, "epochs of adapter training per round; auto: local-epochs", low=1
        )
        adapter_lr: float | None = key(None, "η_θ, the adapter's learning rate; auto: lr", above=0)

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        if experiment.options.adapter_down == "basis":
            raise UserError(
                f"adapter.down is basis; allowed with {experiment.method}: trained, fixed"
            )
        private.check_adapter(experiment, experiment.options.adapter_down or "trained")

    def state_init(self, seed: int) -> Tensors:
        """θ⁰, the global adapter. Raises UserError if a reduced one cannot fit all models: no
        neck widens an FC1."""
        widths = {
            name: self.width_of(facts(name, self.task, self.built_width))
            for name in self.model_names
        }
        if len(set(widths.values())) > 1:
            told = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise UserError(
                f"one adapter cannot fit representations of different widths ({told}); set"
                " adapter.kind=decomposed"
            )
        with seeded(derive(seed, "adapter")):
            return self.sent(self._adapter(self.shared_width))

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Freeze the adapter, train the model; then freeze the model, train the adapter."""
        adapter = self.received_adapter(model, received, data)
        self.train_model(model, adapter, data, visit)
        self.train_adapter(model, adapter, data, visit)
        return Upload(self.sent(adapter), len(data))  # θ_k^t goes up, ω_k^t stays

    def received_adapter(self, model: ClientModel, received: Tensors, data: Samples) -> Adapter:
        """θ_k ← θ^{t-1}, where the data is."""
        return self.loaded(model, received).to(data.labels.device)

    def train_model(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """ω_k^t ← ω_k^{t-1} − η_ω ∇ℓ_ω (Eq. 8). The adapter is frozen, not detached: its loss flows
        through it into f_k."""
        mu = self.own_weight(visit.round)

        def model_loss(inputs: Tensor, labels: Tensor) -> Tensor:
            representation = self.encode(model, inputs)  # R = f_k(x)
            own = cross_entropy(self.head(model, representation), labels)  # ℓ_2, Eq. 6
            through_adapter = cross_entropy(adapter(representation), labels)  # ℓ_1, Eq. 6
            return mu * own + (1 - mu) * through_adapter  # ℓ_ω, Eq. 7

        with frozen(adapter):
            visit.sgd("model", model.parameters(), model_loss, data)

    def train_adapter(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """θ_k^t ← θ^{t-1} − η_θ ∇ℓ_θ, with f_k frozen."""
        e = self.experiment
        model.eval()  # frozen: no running statistics, no dropout (in a model of the user's)

        def adapter_loss(representation: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(adapter(representation), labels)  # ℓ_θ, Eq. 10

        def adapter_loss_of_inputs(inputs: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                representation = self.encode(model, inputs)  # R̃ = f_k(x)
            return adapter_loss(representation, labels)

        epochs, lr = self.adapter_epochs(e), self.adapter_rate(e)
        if e.augment:  # each epoch sees other inputs, so R̃ is computed anew
            visit.sgd(
                "adapter", adapter.parameters(), adapter_loss_of_inputs, data, epochs=epochs, lr=lr
            )
        else:  # f_k is frozen and the inputs are the same in every epoch: R̃ is computed once
            visit.sgd(
                "adapter",
                adapter.parameters(),
                adapter_loss,
                self.features(model, data, visit),
                epochs=epochs,
                lr=lr,
                augment=False,
            )

    def features(self, model: ClientModel, data: Samples, visit: Visit) -> Samples:
        """R̃ of all samples, of a model in evaluation mode."""
        found = visit.infer("adapter", lambda inputs: self.encode(model, inputs), data)
        return Samples(found, data.labels)

    @staticmethod
    def adapter_epochs(e: Experiment) -> int:
        return e.options.adapter_epochs or e.local_epochs

    @staticmethod
    def adapter_rate(e: Experiment) -> float:
        """η_θ."""
        return e.options.adapter_lr or e.lr

    def own_weight(self, round: int) -> float:
        """μ of Eq. 7 in this round: the same in all."""
        return self.options.mu

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t, n over the admitted clients (Eq. 12)."""
        return weighted_mean(uploads)

    def sent(self, adapter: Adapter) -> Tensors:
        """What of θ is shared: all of it, or its second matrix where the first one is fixed."""
        return {
            name: tensor
            for name, tensor in tensors_of(adapter).items()
            if self.down == "trained" or not name.startswith("down.")
        }

    def loaded(self, model: ClientModel, shared: Tensors) -> Adapter:
        """The adapter that reads this model's R, with what was shared of θ."""
        adapter = self.adapter_of(model)
        own = tensors_of(adapter)
        fixed = {name: own[name] for name in own.keys() - self.sent(adapter).keys()}
        adapter.load_state_dict(fixed | shared)
        return adapter

    def _adapter(self, width: int) -> Adapter:
        o = self.options
        adapter = self.adapter_type(
            width, o.adapter_hidden_dim, self.classes, self.kind, o.adapter_init
        )
        if self.down == "fixed":
            adapter.fix_down(derive(self.experiment.seed, "state"))
        return adapter

    @property
    def down(self) -> str:
        """Whether the first matrix is trained or fixed; `auto` is the paper's."""
        return self.options.adapter_down or "trained"

    @property
    def kind(self) -> str:
        """The adapter's kind; `auto` is the paper's for the setting."""
        auto = "reduced" if self.experiment.setting == "homogeneous" else "decomposed"
        return auto if self.options.adapter_kind == "auto" else self.options.adapter_kind

    @property
    def reduced(self) -> bool:
        return self.kind == "reduced"

    def width_of(self, facts: Facts) -> int:
        """A reduced adapter stands beside FC2 and FC3 of a family's model, all others beside the
        last layer."""
        return facts.trunk_width if self.reduced and facts.trunk_width else facts.width

    def encode(self, model: ClientModel, inputs: Tensor) -> Tensor:
        """R = f_k(x), what the adapter reads."""
        if self.reduced and isinstance(model, Family):
            return model.trunk(inputs)
        return model.encode(inputs)

    def head(self, model: ClientModel, representation: Tensor) -> Tensor:
        """h_k(R), beside which the adapter stands."""
        if self.reduced and isinstance(model, Family):
            return model.rest(representation)
        return model.head(representation)

    def adapter_of(self, model: ClientModel) -> Adapter:
        """A fresh adapter that reads this model's R."""
        if self.reduced and isinstance(model, Family):
            return self._adapter(model.trunk_width)
        return self._adapter(model.width)
