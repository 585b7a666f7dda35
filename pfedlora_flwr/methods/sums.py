"""Methods that solve a head from sums over all clients' samples, in the place of training it.

A client sends its sums once; if its samples change, the difference. The server adds what it admits,
and tells each client in the next download which of its visits it has added last: a difference that
was lost on its way is in the next one. The client then solves its head in closed form, with its own
samples as they are.

Where no client's own sums are to be read, all send tensors of one layout, in units in which masks
and noise take them (`units`), and the state is their sum in these. Nobody is told what was added:
it is what the model keeps with which a client's visit begins. Under masks a difference waits until
enough clients have one, since the sum of a round's differences is the one client's that changed.

Symbols: z ∈ R^d, a sample's coordinates, |z| ≤ 1: R of a frozen encoder, without its mean and of
unit variance, over √width, and then perhaps its first d numbers in a basis. n_c = #{i: y_i = c},
S_c = Σ_{y_i = c} z_i, G = Σ_i z_i z_iᵀ; μ_c = S_c / n_c; n = Σ_c n_c; s, the shrinkage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import check_classes
from pfedlora_flwr.methods.hidden_sums import Hidden
from pfedlora_flwr.methods.leave_one_out import correction, own_priors, spread_of
from pfedlora_flwr.methods.method import (
    ByClient,
    Predictors,
    Refused,
    Tensors,
    Upload,
    check_layout,
)
from pfedlora_flwr.methods.moments import Solver, Sums, diagonal, report
from pfedlora_flwr.models import basis
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.named import random_encoders
from pfedlora_flwr.models.registry import facts
from pfedlora_flwr.models.spec import specs_of
from pfedlora_flwr.models.summary import Summary, among
from pfedlora_flwr.training.loop import Samples, Visit, count_correct

VALIDATION = "validation"
_ROUNDING = 1e-6
"""Of a length: R comes in float32."""
_DEFINITE = 1e-9
"""By how much of n the smallest eigenvalue of a scatter may be below 0."""


class OfSums(Hidden):
    """What methods of sums have in common: what is sent, added and checked. Each has a closed form
    of its own."""

    class_rows = ("sums",)
    merges = "sums"

    @dataclass(frozen=True)
    class Options(Hidden.Options):
        dim: int | None = key(
            None,
            "d, the first directions of a basis, in which representations are summed; auto: as"
            " they are, or all of sums.basis",
            low=1,
        )
        basis: str | None = key(
            None,
            "a file of principal directions of public inputs (`pfedlora align --basis`); auto: with"
            " sums.dim those of the pretrained classifiers' weights",
            path=True,
        )
        priors: str = key(
            "equal",
            "of classes. equal, all: among the classes held, all by their shares of all samples."
            " own: among all, by the client's smoothed shares, weighted by leave-one-out",
            choices=("equal", "own", "all"),
        )
        correction: str = key(
            "none",
            "ridge: each client adds a regression of what is left, on its own samples, which is"
            " never sent; its strength by leave-one-out",
            choices=("none", "ridge"),
        )

    @classmethod
    def default_keys(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """A round that sends the sums, perhaps one that sends counts of validation samples, and one
        that brings what is the sum of all."""
        return {
            **super().default_keys(given),
            "rounds": 3 if given.get("sums.shrinkage") == VALIDATION else 2,
            "train": "head",
            "representation-norm": "layer",
            "initial-models": "architecture",
            "evaluate-initial": False,
        }

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        super().check_experiment(experiment)
        e, told = experiment, f"allowed with {experiment.method}"
        if {*e.train} != {"head"}:
            raise UserError(f"train is {e.train}; {told}: head, because no encoder is trained")
        if e.representation_norm != "layer":
            raise UserError(
                f"representation-norm is {e.representation_norm}; {told}: layer, by which every"
                " sample's part in a sum is bounded"
            )
        if e.neck != "auto":
            raise UserError(f"neck is {e.neck}; {told}: auto, because a neck is trained")
        if e.augment:
            raise UserError(f"augment is true; {told}: false, because each sample is read once")
        o = e.options
        if o.dim and not o.basis and e.representation != "pretrained-logits":
            raise UserError(
                f"sums.dim is {o.dim}, and representation is {e.representation}; allowed with it:"
                " pretrained-logits, or a file as sums.basis"
            )
        names = dict.fromkeys(one.name for one in specs_of(e))
        drawn = [name for name in names if ":" not in name] + random_encoders(specs_of(e))
        if drawn and (len(names) > 1 or e.initial_models != "architecture"):
            raise UserError(
                f"model {drawn[0]!r} has an encoder that is drawn at random; {told}: models with"
                " weights, or one model for all with initial-models=architecture"
            )

    def remarks(self) -> list[str]:
        """Says what a sum shows, and names encoders whose coordinates mean nothing to each
        other."""
        shown = (
            "the server sees each client's sums: where a client has one sample of a class, its"
            " class sum is that sample's representation"
        )
        if self.experiment.noises:
            return []
        if self.hides:
            shown = (
                f"sums are sent once: a client that changes or comes later sends nothing until"
                f" {self.changing} of a round have, since a sum of differences is that of the one"
                " client that changed (sums.changing)"
            )
        if self.experiment.representation != "features" or len({*self.model_names}) == 1:
            return [shown]
        return [
            shown,
            f"{self.experiment.method} adds features of {len({*self.model_names})} different"
            " encoders, which have no coordinates in common;"
            " representation=pretrained-logits or anchors:FILE gives them some",
        ]

    def state_init(self, seed: int) -> Tensors:
        """Sums of nothing, and nobody who has contributed."""
        self._check_widths()
        if self.hides:
            one = {} if self.experiment.noises else {"changing": torch.zeros(1).double()}
            return self.nothing() | one
        nobody = torch.zeros(0, dtype=torch.int64)
        return self.nothing() | {
            "clients": nobody,
            "visits": nobody,
            "held": torch.zeros(0, self.classes, dtype=torch.float64),
        }

    def nothing(self) -> Tensors:
        """Sums over no sample."""
        d = self.width
        return Sums(
            torch.zeros(self.classes, dtype=torch.float64),
            torch.zeros(self.classes, d, dtype=torch.float64),
            torch.zeros(d * (d + 1) // 2 if self.squares else 0, dtype=torch.float64),
        ).tensors() | {"right": torch.zeros(len(self.candidates), dtype=torch.float64)}

    def private_init(self, client: int, seed: int) -> nn.Module:
        model = super().private_init(client, seed)
        assert isinstance(model, ClientModel)
        if model.extractor_parameters():
            raise UserError(
                f"model {self.model_of(client)!r} trains something before its head; allowed with"
                f" {self.experiment.method}: a frozen encoder"
            )
        return Summary(model, self.nothing(), corrected=self.options.correction == "ridge")

    def predictor(self, model: Summary) -> ClientModel:
        return model.predictor()

    def other_predictors(self, model: Summary, received: Tensors) -> Predictors:
        """`all`: among all classes of which anyone has a sample."""
        return {"all": model.model}

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """The sums of all, and the round of the receiver's last visit that is in them; 0: of none.
        Where clients are hidden, the state."""
        if self.hides:
            return dict(state)
        own = state["visits"][state["clients"] == client]
        acknowledged = own if len(own) else torch.zeros(1, dtype=torch.int64)
        return {name: state[name] for name in self.nothing()} | {"acknowledged": acknowledged}

    def local_update(
        self, model: Summary, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Send the own sums, less what the server has added of them, and once there are others'
        how many validation samples each candidate of s gets right; solve the head."""
        if not len(data):
            raise UserError(f"client {visit.client} has no training samples: there is no sum")
        x = self.inputs(model, data, visit)
        z = self.coordinates(x)
        own = Sums.of(z, data.labels, self.classes, squares=self.squares)
        self.check_samples(len(data))
        told, received = received, self.read(received)
        before = self.contributed(model, received, visit)
        change = own - Sums.among(before)
        total = Sums.among(received) + change
        right = torch.zeros_like(received["right"])
        if received["counts"].any() and visit.validation is not None and len(visit.validation):
            for i, s in enumerate(self.candidates):
                self.solve(model, total, own, s, x, data.labels)
                right[i] = count_correct(model.eval().predictor(), visit.validation)
        s = self.strength(total, received["right"])
        self.solve(model, total, own, s, x, data.labels)
        visit.flops["sums"] += self.operations(len(data))
        if not self.hides:
            model.remember(visit.round, own.tensors() | {"right": right})
            return Upload(report(change) | {"right": right - before["right"]}, len(data))
        sends = self.experiment.releases(visit.round)
        if not self.experiment.noises:
            sends = bool(not received["counts"].any() or received["changing"] >= self.changing)
        more = {n: t * sends for n, t in change.tensors().items()} | {"right": right}
        if "changing" in told:
            waits = not sends and any(bool(t.any()) for t in change.tensors().values())
            more["changing"] = torch.full_like(told["changing"], waits)
        model.remember(visit.round, own.tensors() if sends else before)
        return Upload({n: told[n] + self.units[n].to(t.device) * t for n, t in more.items()}, 1)

    def operations(self, n: int) -> int:
        """Of G over n samples, its Cholesky factor, and a column for each class."""
        d = self.width
        return 2 * n * d**2 + d**3 // 3 + 2 * self.classes * d**2 if self.squares else 0

    def contributed(self, model: Summary, received: Tensors, visit: Visit) -> Tensors:
        """What the server counts as this client's. Raises UserError if the client no longer has
        it."""
        own = int(model.visit)
        adapted = visit.client >= self.experiment.trained_clients
        known = int(received.get("acknowledged", 0 if adapted else own))
        if known not in (0, own):
            raise UserError(
                f"client {visit.client} no longer has what it sent in round {known}, which is in"
                f" the sums; restore its model of round {known}, or begin a new run"
            )
        sent = {name: getattr(model, name) for name in self.nothing()}
        return {name: tensor * (known > 0) for name, tensor in sent.items()}

    def inputs(self, model: Summary, data: Samples, visit: Visit) -> Tensor:
        """R / √width of samples, [n, width], float64."""
        r = visit.infer("sums", model.model.encode, data)
        return r.double() / r.shape[1] ** 0.5

    def coordinates(self, x: Tensor) -> Tensor:
        """z, [n, d], of R / √width."""
        z = x if self.directions is None else x @ self.directions.to(x.device)
        if self.experiment.noises:
            z = z / z.norm(dim=1, keepdim=True).clamp(min=1)
        return z

    def solve(
        self, model: Summary, total: Sums, own: Sums, s: float, x: Tensor, labels: Tensor
    ) -> None:
        """Sets the client's head by the sums of all, with its own samples as they are, and what it
        adds by these samples x, each as if it were in no sum."""
        a, bias = self.scores(total, s)
        of_x = a if self.directions is None else a @ self.directions.to(a.device).T
        model.set_scores(*among(of_x / x.shape[1] ** 0.5, bias, total.known))
        o = self.options
        model.asked.copy_(total.known if o.priors == "own" else own.known)
        if o.priors == "all":
            model.shift.copy_(torch.log(total.counts.clamp(min=0.5) / total.n.clamp(min=1)))
        if o.priors != "own" and o.correction == "none":
            return
        z = self.coordinates(x)
        spread = spread_of(z @ a.T + bias, model.asked)
        scores = self.left_out(total, s, z, labels)
        if o.priors == "own":
            model.shift.copy_(own_priors(scores, labels, own.counts, total.known, spread))
        if o.correction == "ridge":
            scores += model.shift
            scale, weight = correction(x, scores, labels, model.asked, spread)
            model.scale.copy_(scale)
            model.private.copy_(weight / x.shape[1] ** 0.5)

    def strength(self, total: Sums, right: Tensor) -> float:
        """s. right: of all clients' validation samples, by candidate."""
        return 0.0

    @property
    def candidates(self) -> tuple[float, ...]:
        """The s among which clients' validation samples choose; none where nothing is to choose."""
        return ()

    def scores(self, total: Sums, s: float) -> tuple[Tensor, Tensor]:
        """The closed form: A, [C, d], and b, [C], so that class c has the score zᵀ a_c + b_c. By
        default a_c = P μ_c and b_c = −½ μ_cᵀa_c."""
        a = self.inverse(total, s, total.means.T).T
        return a, -0.5 * (total.means * a).sum(1)

    def inverse(self, total: Sums, s: float, of: Tensor) -> Tensor:
        """P, the inverse of what the scores divide by, times columns [d, m]."""
        if s not in total.solvers:
            total.solvers[s] = self.solver(total, s)
        return total.solvers[s](of)

    @abstractmethod
    def solver(self, total: Sums, s: float) -> Solver:
        """What multiplies columns by P."""

    def left_out(self, total: Sums, s: float, z: Tensor, labels: Tensor) -> Tensor:
        """The scores of samples that are in the sums, [n, C], each as if its class's mean were
        without it; the lowest of all where that has no other."""
        a, bias = self.scores(total, s)
        scores = z @ a.T + bias
        n, mean, a = total.counts[labels], total.means[labels], a[labels]
        za, zpz = (z * a).sum(1), (z * self.inverse(total, s, z.T).T).sum(1)
        product = (n * za - zpz) / (n - 1)  # of z and P μ without it
        square = (n**2 * (mean * a).sum(1) - 2 * n * za + zpz) / (n - 1) ** 2
        without = torch.where(n > 1.5, product - 0.5 * square, scores.min() - 1)
        return scores.scatter(1, labels[:, None], without[:, None])

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """Adds the differences, and notes whose are in the sums."""
        if self.hides:
            return self.added(uploads, state, round)
        total = Sums.among(state)
        held = dict(zip(state["clients"].tolist(), state["held"], strict=True))
        visits = dict(zip(state["clients"].tolist(), state["visits"].tolist(), strict=True))
        for client, upload in uploads.items():
            change = self.whole(upload.tensors)
            total += change
            held[client] = held.get(client, torch.zeros_like(change.counts)) + change.counts
            visits[client] = round
        clients = sorted(visits)
        return total.tensors() | {
            "right": sum((upload.tensors["right"] for upload in uploads.values()), state["right"]),
            "clients": torch.tensor(clients, dtype=torch.int64),
            "visits": torch.tensor([visits[k] for k in clients], dtype=torch.int64),
            "held": torch.stack([held[k] for k in clients]),
        }

    def whole(self, sent: Tensors) -> Sums:
        """What a report says of all classes."""
        zero = Sums.among(self.nothing())
        return Sums(
            zero.counts.index_copy(0, sent["classes"], sent["counts"]),
            zero.sums.index_copy(0, sent["classes"], sent["sums"]),
            sent["gram"] if len(sent["gram"]) else zero.gram,
        )

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        """Server: raises Refused for what are no sums over n_k samples of length at most 1, or no
        difference of two such sums. What is not finite is refused elsewhere."""
        if self.hides:
            super().check(upload, state, client)
            return
        sent, like = upload.tensors, self._layout(upload.tensors)
        check_layout(sent, like)
        check_classes(sent["classes"], self.classes)
        if not all(bool(tensor.isfinite().all()) for tensor in sent.values()):
            return
        change, total = self.whole(sent), Sums.among(state)
        right = sent["right"]
        if not torch.equal(right, right.round()) or (state["right"] + right < 0).any():
            raise Refused(
                f"its right validation samples change by {right.tolist()}, expected whole numbers"
                " that leave no sum below 0"
            )
        own = state["held"][state["clients"] == client].sum(0)
        now = own + change.counts
        if not torch.equal(now, now.round()) or now.min() < 0 or now.sum() != upload.samples:
            raise Refused(
                f"the counts of its classes are then {now[now != 0][:20].tolist()}, expected whole"
                f" numbers ≥ 0 that sum to its {upload.samples} samples"
            )
        most = (own + now) * (1 + _ROUNDING)
        lengths = change.sums.norm(dim=1)
        if (longer := lengths > most).any():
            c = int(longer.nonzero()[0])
            raise Refused(
                f"the sum of its class {c} changes by a length of {lengths[c]:.6g}, at most"
                f" {most[c]:.6g} by samples of length 1"
            )
        if not self.squares:
            return
        trace = float(change.gram[diagonal(self.width)].sum())
        if abs(trace) > most.sum():
            raise Refused(
                f"the trace of its second moment changes by {trace:.6g}, at most {most.sum():.6g}"
                " by samples of length 1"
            )
        together = total + change if own.any() else change
        slack = _DEFINITE * max(1.0, float(together.n)) * torch.eye(self.width).double()
        if int(torch.linalg.cholesky_ex(together.scatter + slack).info):
            whose = "all samples" if own.any() else "its samples"
            raise Refused(f"the scatter of {whose} within classes would have a negative eigenvalue")

    def _layout(self, sent: Tensors) -> Tensors:
        """Of a report on as many classes as `sent` has, with a second moment if it has one."""
        like, ids = self.nothing(), sent.get("classes", torch.zeros(0))
        rows = len(ids) if ids.ndim == 1 else 0
        if not sent.get("gram", like["gram"]).numel():
            like["gram"] = like["gram"][:0]
        whole = ("gram", "right")
        cut = {n: t if n in whole else t.new_empty(rows, *t.shape[1:]) for n, t in like.items()}
        return {"classes": torch.zeros(rows, dtype=torch.int64)} | cut

    def largest_upload(self, state: Tensors) -> int:
        more = 0 if self.hides else 8 * self.classes
        return more + sum(t.nbytes for n, t in state.items() if n in (*self.nothing(), "changing"))

    def magnitude(self, upload: Upload) -> float:
        """0: what an honest client sends differs by its samples; `check` bounds it by what the
        client claims."""
        return 0.0

    @cached_property
    def width(self) -> int:
        """d."""
        if self.directions is not None:
            return self.directions.shape[1]
        return facts(self.model_names[0], self.task).width

    @cached_property
    def directions(self) -> Tensor | None:
        """The basis, [width, d], float64, by which no vector gets longer; None: there is none."""
        o, width = self.options, facts(self.model_names[0], self.task).width
        if not o.dim and not o.basis:
            return None
        if o.basis:
            found = basis.directions_of_file(Path(o.basis), width, "sums.basis")
        else:
            found = basis.directions_of_weights(self.model_names)
        if o.dim and o.dim > found.shape[1]:
            raise UserError(f"sums.dim is {o.dim}; allowed here: at most {found.shape[1]}")
        chosen = found[:, : o.dim or found.shape[1]]
        return chosen / torch.linalg.matrix_norm(chosen, 2).clamp(min=1)

    def _check_widths(self) -> None:
        """Raises UserError for models whose coordinates cannot be added."""
        names, method = dict.fromkeys(self.model_names), self.experiment.method
        widths = {name.name: facts(name, self.task).width for name in names}
        if len(set(widths.values())) > 1:
            told = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise UserError(
                f"method {method} adds representations, and theirs differ in width ({told});"
                " allowed: models of one width, as representation=pretrained-logits may give"
            )


class Shrunk(OfSums):
    """Those with a second moment, which is shrunk."""

    shares = "counts and sums of representations, of the classes held, and one second moment"
    assumes = (
        "frozen encoders with normalised representations of one width; the server may know which"
        " classes a client holds, the number of samples of each, and their sums"
    )
    usual: ClassVar[float]
    """s by default."""
    choices: ClassVar[tuple[float, ...]]
    """The candidates of `validation`."""
    formulas: ClassVar[tuple[str, ...]] = ()
    """Names of formulas for s that this method has."""

    @dataclass(frozen=True)
    class Options(OfSums.Options):
        shrinkage: str | None = key(
            None,
            "s, how far the second moment is shrunk: a number from 0 to 1. fedlda: (1 − s) Σ +"
            " s·(tr Σ / d)·I; fedridge: λ = s / (1 − s). oas (fedlda): by its formula. validation:"
            " one of five, by the clients' validation samples. auto: 0.5; fedridge: 0.001",
        )

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        super().check_experiment(experiment)
        said = experiment.options.shrinkage
        if said not in (None, VALIDATION, *cls.formulas) and not 0 <= _number(said) <= 1:
            raise UserError(
                f"sums.shrinkage is {said}; allowed with {experiment.method}: auto,"
                f" {', '.join((VALIDATION, *cls.formulas))}, or a number from 0 to 1"
            )
        if said == VALIDATION and experiment.noises:
            raise UserError(
                f"sums.shrinkage is validation; allowed with {experiment.noises}: auto, or a number"
                " from 0 to 1, because counts of right samples are no part of the one release"
            )
        if said == VALIDATION and experiment.rounds < 3:
            raise UserError(
                f"rounds is {experiment.rounds}; allowed with sums.shrinkage=validation: at least"
                " 3, of sums, of counts, and of what they choose"
            )

    def strength(self, total: Sums, right: Tensor) -> float:
        said = self.options.shrinkage
        if said == VALIDATION and right.any():
            return self.choices[int(right.argmax())]
        return self.usual if said in (None, VALIDATION) else _number(said)

    @property
    def candidates(self) -> tuple[float, ...]:
        return self.choices if self.options.shrinkage == VALIDATION else ()


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return nan
