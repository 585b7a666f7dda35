"""pFedLoRA+, ours and not the paper's: pFedLoRA whose adapter means the same to all clients.

A row of the adapter's second matrix is a class, and so means the same everywhere; the first matrix
reads each client's representation in a basis of its own. So here the first matrix is given, and a
row is averaged over those who hold its class. docs/results/gain has what that gains.

Where R is common to all clients, the adapter is added to the head: a low-rank prior that all have
made, and a private correction. docs/results/pretrained has what that gains.

Symbols as in pfedlora.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import check_counts, check_report, merged_rows
from pfedlora_flwr.methods.method import HOLDS, ONE_WIDTH, ByClient, Tensors, Upload, check_layout
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.robust import rule_of
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models import basis, private
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.registry import facts
from pfedlora_flwr.models.summed import Summed
from pfedlora_flwr.training.loop import Samples, Visit

ROWS = ("up.weight", "up.bias")


class OfClasses(Adapter):
    """An adapter that answers among the classes that its client holds."""

    outside: Tensor | None = None
    """The other classes, bool [C]."""

    def forward(self, representation: Tensor) -> Tensor:
        logits = super().forward(representation)
        return logits if self.outside is None else logits.masked_fill(self.outside, float("-inf"))


class PFedLoRAPlus(PFedLoRA):
    """Ours. With `adapter.predict=own`, `adapter.rows=samples`, `adapter.down=trained` and μ = 0.5
    it is pFedLoRA."""

    title = "pFedLoRA+"
    paper = "ours"
    idea = (
        "pFedLoRA with a given first matrix, the same for all clients; each row of the second is"
        " averaged over the holders of its class; where R is common, adapter and head are summed"
    )
    class_rows = ("classes", "counts", *ROWS)
    shares = "the adapter's second matrix; up: the rows of the classes held, and their samples"
    merges = "class means"
    averages_rows = True
    assumes = f"{ONE_WIDTH}; {HOLDS}, and the number of samples of each"
    adapter_type = OfClasses

    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        adapter_predict: str | None = key(
            None,
            "own: the client's model alone predicts, as in the paper. sum: h_k(R) + A_θ(R), and"
            " the head is trained with the adapter added, which begins at zero. auto: sum if R is"
            " common (frozen encoders, no necks, and adapter.basis or weights with classifiers)",
            name="adapter.predict",
            choices=("own", "sum"),
        )
        adapter_rows: str = key(
            "classes",
            "weights in the mean of each row of the adapter's second matrix. classes: samples of"
            " the row's class; losses, and the part added to the head, cover only the classes"
            " held. samples: n_k, as in pFedLoRA",
            name="adapter.rows",
            choices=("samples", "classes"),
        )
        adapter_basis: str | None = key(
            None,
            "for adapter.down=basis: a file of principal directions of public inputs (`pfedlora"
            " align --basis`); auto: those of the pretrained classifiers' weights",
            name="adapter.basis",
            path=True,
        )
        adapter_alpha: float | None = key(
            None,
            "α: the first matrix's output is multiplied by α/h; auto: h",
            name="adapter.alpha",
            above=0,
        )
        mu: float = key(
            0.3,
            "μ, the weight of a client's own loss, for pfedlora_plus with adapter.predict=own",
            name="pfedlora_plus.mu",
            low=0,
            high=1,
        )

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        o = experiment.options
        if (by := experiment.hides_clients) and o.adapter_rows == "classes":
            raise UserError(
                f"adapter.rows is classes; allowed with {by}: samples, because rows weighted by"
                " their classes' samples are no mean of whole uploads"
            )
        if experiment.aggregation == "krum" and o.adapter_rows == "classes":
            raise UserError(
                "adapter.rows is classes; allowed with aggregation=krum: samples, because Krum"
                " compares whole uploads of one layout"
            )
        private.check_adapter(experiment, o.adapter_down or "fixed", o.adapter_predict)
        if o.adapter_basis and o.adapter_down not in (None, "basis"):
            raise UserError(
                f"adapter.basis is given, and adapter.down is {o.adapter_down}; allowed with it:"
                " auto, basis"
            )
        if o.adapter_predict == "sum" and o.adapter_kind == "reduced":
            raise UserError(
                "adapter.kind is reduced; allowed with adapter.predict=sum: auto, decomposed, which"
                " has nothing between its matrices"
            )

    def remarks(self) -> list[str]:
        """Names what has no effect where head and adapter predict together, as `auto` may mean."""
        o, own, found = self.options, type(self.options)(), super().remarks()
        if self.sums and o.mu != own.mu:
            found.append("pfedlora_plus.mu is not used: adapter.predict is sum")
        if self.sums and self.down != "trained" and o.adapter_init != own.adapter_init:
            found.append(
                f"adapter.init is not used: adapter.down is {self.down}, and with"
                " adapter.predict=sum the second matrix begins at zero"
            )
        return found

    @classmethod
    def record_epochs(cls, experiment: Experiment) -> int:
        """The adapter reads frozen public encoders, and never the head: a record changes what is
        sent by its own gradients alone."""
        return cls.adapter_epochs(experiment)

    def state_init(self, seed: int) -> Tensors:
        if self.sums and self.built_width is not None:
            told = ", ".join(
                f"{name} {facts(name, self.task).width}" for name in dict.fromkeys(self.model_names)
            )
            raise UserError(
                "adapter.predict is sum, and the clients' representations differ in width"
                f" ({told}); allowed: models of one width, neck=always, or adapter.predict=own"
            )
        state = super().state_init(seed)
        zero = {name: torch.zeros_like(state[name]) for name in ROWS} if self.sums else {}
        return state | zero

    def private_init(self, client: int, seed: int) -> nn.Module:
        model = super().private_init(client, seed)
        assert isinstance(model, ClientModel)
        if self.experiment.noises_gradients:
            private.check_frozen(model, str(self.model_of(client)))
        if not self.sums and self.down != "basis":
            return model
        shared = self.adapter_of(model)  # raises where there is no basis
        return Summed(model, shared, given=self.down == "basis") if self.sums else model

    def predictor(self, model: ClientModel) -> ClientModel:
        return model.merged() if isinstance(model, Summed) else model

    @classmethod
    def rows_sent(cls, experiment: Experiment) -> tuple[str, ...]:
        return cls.class_rows if experiment.options.adapter_rows == "classes" else ()

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        if isinstance(model, Summed):
            model.take(received, self.outside(data) if self.by_class else None)
        upload = super().local_update(model, received, data, visit)
        if not self.by_class:
            return upload
        classes, counts = data.labels.unique(return_counts=True)  # ascending
        rows = {name: upload.tensors[name][classes] for name in ROWS}
        rest = {name: t for name, t in upload.tensors.items() if name not in ROWS}
        return Upload(rest | {"classes": classes, "counts": counts} | rows, len(data))

    def train_model(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """With `sum`: ω_k^t ← ω_k^{t-1} − η_ω ∇CE(h_k(R) + A_θ(R), y), the adapter frozen."""
        if not isinstance(model, Summed):
            super().train_model(model, adapter, data, visit)
        else:
            train_locally(model, data, visit)

    def train_adapter(
        self, model: ClientModel, adapter: Adapter, data: Samples, visit: Visit
    ) -> None:
        """With `dp.level=record`: by DP-SGD, or, where no noise is to be spent, not at all."""
        e = self.experiment
        if not e.noises_gradients:
            super().train_adapter(model, adapter, data, visit)
        elif visit.noise is not None:
            model.eval()
            features = self.features(model, data, visit)
            epochs, lr = self.adapter_epochs(e), self.adapter_rate(e)
            private.train(visit, adapter, features, visit.noise, epochs, lr)

    def received_adapter(self, model: ClientModel, received: Tensors, data: Samples) -> Adapter:
        adapter = super().received_adapter(model, received, data)
        if self.by_class:
            assert isinstance(adapter, OfClasses)
            adapter.outside = self.outside(data)
        return adapter

    def outside(self, data: Samples) -> Tensor:
        """The classes of which there is no sample, bool [C]."""
        every = torch.ones(self.classes, dtype=torch.bool, device=data.labels.device)
        return every.index_fill_(0, data.labels, False)

    def adapter_of(self, model: ClientModel) -> Adapter:
        adapter = super().adapter_of(model)
        o = self.options
        if self.down == "basis":
            count = o.adapter_hidden_dim
            adapter.set_down(
                *(
                    basis.of_file(Path(o.adapter_basis), adapter.down.in_features, count)
                    if o.adapter_basis
                    else basis.of_weights(self.model_names, model, count)
                )
            )
        if o.adapter_alpha is not None:
            adapter.scale = o.adapter_alpha / o.adapter_hidden_dim
        return adapter

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """The means of the uploads; by class, the rows of a class that none of them holds stay."""
        if not self.by_class:
            return super().aggregate(uploads, state, round)
        rest = {
            k: Upload({n: u.tensors[n] for n in state if n not in ROWS}, u.samples)
            for k, u in uploads.items()
        }
        rule = rule_of(self.experiment)
        merged = state | (rule.merged(rest) if rule else weighted_mean(rest))
        sent = [upload.tensors for upload in uploads.values()]
        labels, counts = (torch.cat([s[name] for s in sent]) for name in ("classes", "counts"))
        for name in ROWS:
            rows = torch.cat([s[name].view(len(s["classes"]), -1) for s in sent])
            found = merged_rows(self.experiment, rows, labels, self.classes, counts)
            means = found["means"].view(-1, *state[name].shape[1:])
            merged[name] = state[name].index_copy(0, found["classes"], means)
        return merged

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        if not self.by_class:
            super().check(upload, state, client)
            return
        ids = torch.zeros(0, dtype=torch.int64)
        rest = {name: like for name, like in state.items() if name not in ROWS}
        rows = {name: state[name] for name in ROWS}
        sent = upload.tensors
        check_layout({name: t for name, t in sent.items() if name in rest}, rest)
        check_report(
            {name: t for name, t in sent.items() if name not in rest},
            {"classes": ids, "counts": ids} | rows,
            self.classes,
        )
        check_counts(sent["counts"], upload.samples)

    def largest_upload(self, state: Tensors) -> int:
        return super().largest_upload(state) + (16 * self.classes if self.by_class else 0)

    @property
    def by_class(self) -> bool:
        """Whether a row is averaged over those who hold its class."""
        return self.options.adapter_rows == "classes"

    @cached_property
    def common(self) -> bool:
        """Whether all clients' R mean the same to an adapter whose first matrix is a basis, by
        their models' names."""
        names = self.model_names
        return (
            all(one.train == "head" and one.neck is None for one in names)
            and (bool(self.options.adapter_basis) or all(map(basis.has_weights, names)))
            and len({facts(name, self.task).width for name in names}) == 1
        )

    @cached_property
    def sums(self) -> bool:
        """Whether head and adapter predict together."""
        o = self.options
        if o.adapter_predict is not None or o.adapter_kind == "reduced":
            return o.adapter_predict == "sum"
        return self.common

    @cached_property
    def down(self) -> str:
        o = self.options
        auto = "basis" if o.adapter_basis or (self.sums and self.common) else "fixed"
        return o.adapter_down or auto

    @property
    def kind(self) -> str:
        return "decomposed" if self.sums else super().kind
