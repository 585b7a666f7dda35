"""FedKD. Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning via Knowledge
Distillation (Nature Communications 2022).

Symbols: t is the teacher, the client's own model, s the student, a small model that all clients
share; H are their hidden representations, W_h a projection that the client keeps; θ are the
student's parameters and θ₀ their initial values, which both ends make from the experiment's seed.
θ̂ is what a round starts from: θ₀ plus the compressed θ − θ₀ that the server sends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import (
    SMALL,
    ByClient,
    Method,
    Tensors,
    Upload,
    check_layout,
    root_mean_square,
)
from pfedlora_flwr.methods.mutual import kl, received_model, small_model
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy

ROUNDING = 1e-12
"""A share of the energy that is rounding, not signal."""
CERTAIN = 1e-3
"""The least denominator: models that predict everything perfectly would otherwise divide by 0."""


class Teacher(nn.Module):
    """What a client keeps: its own model, and W_h from the student's representation to its own."""

    def __init__(self, local: ClientModel, student_width: int) -> None:
        super().__init__()
        self.local = local
        self.projection = Linear(student_width, local.width, bias=False)


class FedKD(Method):
    """Algorithm 1 of the paper. The server's state is what it sends: θ − θ₀, compressed."""

    title = "FedKD"
    paper = "Wu et al., Nature Communications 2022, arXiv 2108.13323"
    idea = (
        "Like FML, also for representations, each loss weighted by how well both models predict;"
        " updates are sent as truncated SVDs"
    )
    shares = "compressed change of the small model"
    merges = "mean"
    assumes = SMALL
    shares_small = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        energy_start: float = key(
            0.95, "share of σ² that compression keeps in the first round", low=0, high=1
        )
        energy_end: float = key(
            0.98, "share of σ² that compression keeps in the last round", low=0, high=1
        )

    @property
    def uses_rounds(self) -> bool:
        # the threshold rises up to the last round
        return self.options.energy_start != self.options.energy_end

    def state_init(self, seed: int) -> Tensors:
        """θ = θ₀: a difference of 0. (`seed` is the one that `initial` uses at both ends.)"""
        return compress(
            {name: torch.zeros_like(t) for name, t in self.initial.items()}, self.energy(1)
        )

    def private_init(self, client: int, seed: int) -> Teacher:
        with seeded(seed):
            # the client's own first, so that it starts as with every other method
            return Teacher(self.client_model(client), small_model(self).width)

    def local_update(
        self, model: Teacher, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Adaptive mutual distillation: the better both predict, the more they learn from each
        other."""
        initial = {name: t.to(data.labels.device) for name, t in self.initial.items()}
        start = add(initial, decompress(received, initial))  # θ̂
        student = received_model(self, start, data.labels.device)
        teacher = model.local

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            h_t, h_s = teacher.encode(inputs), student.encode(inputs)
            y_t, y_s = teacher.last_layer()(h_t), student.last_layer()(h_s)
            projected = model.projection(h_s)  # W_h H^s
            labelled = cross_entropy(y_t, labels) + cross_entropy(y_s, labels)  # L^t_t + L^t_s
            distilled = kl(y_t, y_s) + kl(y_s, y_t)  # L^d_t + L^d_s
            # L^h in both models' losses
            hidden = mse_loss(h_t, projected.detach()) + mse_loss(projected, h_t.detach())
            return labelled + (distilled + hidden) / labelled.detach().clamp(min=CERTAIN)

        visit.sgd("model", [*model.parameters(), *student.parameters()], loss, data)
        update = {name: t - start[name] for name, t in kept(student).items()}
        return Upload(compress(update, self.energy(visit.round)), len(data))

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """θ ← θ̂ + Σ n_k/n · update_k, compressed for the next round's clients."""
        initial = self.initial
        updates = {
            k: replace(upload, tensors=decompress(upload.tensors, initial))
            for k, upload in uploads.items()
        }
        return compress(
            add(decompress(state, initial), weighted_mean(updates)), self.energy(round + 1)
        )

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        """Each tensor dense, or as two factors that are together smaller."""
        layout: Tensors = {}
        for name, like in self.initial.items():
            u = upload.tensors.get(f"{name}/u")
            rank = u.shape[1] if u is not None and u.ndim == 2 else 0
            out, rest = (like.shape[0], like.shape[1:].numel()) if like.ndim > 1 else (0, 0)
            factors = 0 < rank * (out + rest) < like.numel()
            shapes = (
                {f"{name}/u": (out, rank), f"{name}/v": (rank, rest)}
                if factors
                else {name: tuple(like.shape)}
            )
            layout |= {
                n: torch.empty(shape, dtype=like.dtype, device="meta")
                for n, shape in shapes.items()
            }
        check_layout(upload.tensors, layout)

    def largest_upload(self, state: Tensors) -> int:
        return sum(t.nbytes for t in self.initial.values())

    def magnitude(self, upload: Upload) -> float:
        """Of the update that the factors stand for: one of the two is orthonormal whatever the
        update's size."""
        return root_mean_square(decompress(upload.tensors, self.initial))

    def predictor(self, model: Teacher) -> ClientModel:
        return model.local

    @cached_property
    def initial(self) -> Tensors:
        """θ₀: the same at the server and at every client, so one that missed rounds is not out of
        step."""
        with seeded(derive(self.experiment.seed, "state")):
            return kept(small_model(self))

    def energy(self, round: int) -> float:
        """The threshold of `round`: rises linearly from the first round to the last."""
        start = self.options.energy_start
        end = self.options.energy_end
        last = self.experiment.rounds
        return start + (end - start) * min(round - 1, last - 1) / max(1, last - 1)


def compress(tensors: Tensors, energy: float) -> Tensors:
    """Each matrix (a convolution as [out, -1]) as `name/u` [out, r] and `name/v` [r, -1], U·Σ and
    Vᵗ cut at the smallest rank that keeps `energy`; dense, under its own name, where that is not
    more elements. Vectors, single numbers and what is not finite are dense."""
    sent: Tensors = {}
    for name, tensor in tensors.items():
        whole = tensor.ndim < 2 or not tensor.isfinite().all()
        u, v = (tensor, tensor) if whole else truncated_svd(tensor.flatten(1), energy)
        sent |= (
            {f"{name}/u": u, f"{name}/v": v}
            if u.numel() + v.numel() < tensor.numel()
            else {name: tensor}
        )
    return sent


def decompress(sent: Tensors, like: Tensors) -> Tensors:
    """The tensors, in the shapes of `like`."""
    return {
        n: sent[n] if n in sent else (sent[f"{n}/u"] @ sent[f"{n}/v"]).view(t.shape)
        for n, t in like.items()
    }


def truncated_svd(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    """Factors [m, r] and [r, n] of the best rank-r approximation; r ≥ 1 is the smallest rank whose
    share of Σσ² is at least `energy`.

    By the eigenvectors of the smaller Gram matrix in float64, whose eigenvalues are σ²: exact
    enough for float32, and faster. A matrix of zeros has rank-1 factors of zeros."""
    m = matrix.double()
    tall = m.shape[0] > m.shape[1]
    squares, vectors = torch.linalg.eigh(m.T @ m if tall else m @ m.T)  # ascending
    kept = squares.flip(0).clamp(min=0).cumsum(0)
    rank = int((kept < (energy - ROUNDING) * kept[-1]).sum()) + 1
    basis = vectors.flip(1)[:, :rank]
    u, v = (m @ basis, basis.T) if tall else (basis, basis.T @ m)
    return u.to(matrix.dtype).contiguous(), v.to(matrix.dtype).contiguous()


def add(left: Tensors, right: Tensors) -> Tensors:
    """The sum, name by name."""
    return {name: tensor + right[name] for name, tensor in left.items()}
