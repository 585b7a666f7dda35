"""pFedLoRA+, ours and not the paper's: pFedLoRA whose adapter means the same to all clients.

A row of the adapter's second matrix is a class, and so means the same everywhere; the first matrix
reads each client's representation in a basis of its own. So here the first matrix is fixed, and a
row is averaged over those who hold its class. docs/results/gain has what that gains.

Symbols as in pfedlora.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import ClassMeans
from pfedlora_flwr.methods.method import Refused, Tensors, Upload, check_layout
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit

_ROWS = ("up.weight", "up.bias")


class OfClasses(Adapter):
    """An adapter that answers among the classes that its client holds."""

    outside: Tensor | None = None
    """The other classes, bool [C]."""

    def forward(self, representation: Tensor) -> Tensor:
        logits = super().forward(representation)
        return logits if self.outside is None else logits.masked_fill(self.outside, float("-inf"))


class PFedLoRAPlus(PFedLoRA):
    """Ours. With `adapter.rows=samples`, `adapter.down=trained` and μ = 0.5 it is pFedLoRA."""

    title = "pFedLoRA+"
    paper = "ours"
    idea = (
        "pFedLoRA with a fixed first matrix, the same for all clients; each row of the second"
        " matrix is averaged over the holders of its class"
    )
    shares = "the adapter's second matrix, and the number of samples of each class"
    merges = "class means"
    assumes = (
        "equal representation widths (necks provide them); the server may know which classes a"
        " client holds, and the number of samples of each"
    )
    adapter_type = OfClasses

    @dataclass(frozen=True)
    class Options(PFedLoRA.Options):
        adapter_rows: str = key(
            "classes",
            "weights for averaging rows of the adapter's second matrix: classes: samples of the"
            " row's class, with losses over the classes held; samples: n_k, as in pFedLoRA",
            name="adapter.rows",
            choices=("samples", "classes"),
        )
        mu: float = key(
            0.3,
            "μ, the weight of a client's own loss, for pfedlora_plus",
            name="pfedlora_plus.mu",
            low=0,
            high=1,
        )

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        if experiment.secagg_enabled and experiment.options.adapter_rows == "classes":
            raise UserError(
                "adapter.rows is classes; allowed with secure aggregation: samples, because masks"
                " hide uploads of which each row has a weight of its own"
            )

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        upload = super().local_update(model, received, data, visit)
        if not self.by_class:
            return upload
        outside = self.outside(data)
        sent = dict(upload.tensors)
        for name in _ROWS:  # weight decay has no part in rows that are not the client's
            sent[name][outside] = received[name][outside]
        return Upload(
            sent | {"counts": torch.bincount(data.labels, minlength=self.classes)}, len(data)
        )

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

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """The means of the uploads; by class, the rows of a class that none of them holds stay."""
        if not self.by_class:
            return super().aggregate(uploads, state, round)
        rest = {
            k: Upload({n: u.tensors[n] for n in state if n not in _ROWS}, u.samples)
            for k, u in uploads.items()
        }
        merged = state | weighted_mean(rest)
        for name in _ROWS:
            rows = ClassMeans(self.classes, state[name][0].numel())
            for upload in uploads.values():
                rows.add(
                    upload.tensors[name].view(self.classes, -1),
                    torch.arange(self.classes),
                    upload.tensors["counts"],
                )
            found = rows.tensors()
            means = found["means"].view(-1, *state[name].shape[1:])
            merged[name] = state[name].index_copy(0, found["classes"], means)
        return merged

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        if not self.by_class:
            super().check(upload, state, client)
            return
        check_layout(
            upload.tensors, state | {"counts": torch.zeros(self.classes, dtype=torch.int64)}
        )
        counts = upload.tensors["counts"]
        if int(counts.min()) < 0 or int(counts.sum()) != upload.samples:
            raise Refused(
                f"counts are {counts[:20].tolist()}, expected numbers ≥ 0 that sum to its"
                f" {upload.samples} samples"
            )

    def largest_upload(self, state: Tensors) -> int:
        return super().largest_upload(state) + (8 * self.classes if self.by_class else 0)

    @property
    def by_class(self) -> bool:
        """Whether a row is averaged over those who hold its class."""
        return self.options.adapter_rows == "classes"

    @property
    def down(self) -> str:
        return self.options.adapter_down or "fixed"
