"""Pooled: one model of each architecture, trained on the training rows of all clients. It is the
reference for what sharing could gain at most, and no federation: it needs all rows in one place.

In each round the first sampled client of an architecture trains the architecture's model W on the
pooled rows, and sends it; what the others of it receive is what they predict with. A client that
trains is one round ahead, so that all clients of a round have the same model: after round t (from
the second on) one that was trained for t rounds."""

from __future__ import annotations

from dataclasses import replace

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import ByClient, Method, Tensors, Upload, check_layout
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import sample_clients
from pfedlora_flwr.training.loop import Samples, Visit


class Pooled(Method):
    """SGD on all rows, with as many visits to rows as the round's clients have together."""

    title = "Pooled"
    paper = "–"
    idea = "One model of each architecture is trained on the rows of all clients"
    shares = "training rows"
    merges = "–"
    assumes = "all rows in one place: a simulation"

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        """Refuses a single round, after which nothing trained would be there."""
        if experiment.rounds < 2:
            raise UserError(
                "method is pooled, which trains on all clients' rows a round ahead: rounds is"
                f" {experiment.rounds}; allowed: ≥ 2"
            )

    def trains(self, client: int, round: int) -> bool:
        """Whether it is this client that trains its architecture's model in a round: the first of
        those that are sampled."""
        e = self.experiment
        there = sample_clients(e.seed, round, e.clients_in(round), e.sampled_in(round))
        own = self.model_of(client)
        return client == next(k for k in there if self.model_of(k) == own)

    def state_init(self, seed: int) -> Tensors:
        """W⁰ of each architecture, that of its first client."""
        names = dict.fromkeys(self.model_of(k) for k in range(self.experiment.clients))
        firsts = [self.model_names.index(name) for name in names]
        models = ((first, kept(self.initial_model(first))) for first in firsts)
        return {f"{k}.{name}": t.clone() for k, model in models for name, t in model.items()}

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """W of the client's architecture."""
        return {
            name: tensor
            for name, tensor in state.items()
            if name.startswith(f"{self.model_names.index(self.model_of(client))}.")
        }

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """data: of the client that trains, the pooled rows. What it predicts with is W as it came,
        as with the others."""
        w = {name.partition(".")[2]: tensor for name, tensor in received.items()}
        load_kept(model, w)
        if not self.trains(visit.client, visit.round):
            return Upload({}, len(data))
        for ahead in range(1 if visit.round > 1 else 0, 2):
            train_locally(model, data, replace(visit, round=visit.round + ahead))
        trained = dict(zip(received, (t.clone() for t in kept(model).values()), strict=True))
        load_kept(model, w)
        return Upload(trained, len(data))

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """W of the architectures that were trained."""
        trained = {name: t for upload in uploads.values() for name, t in upload.tensors.items()}
        return {name: trained.get(name, tensor) for name, tensor in state.items()}

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        if upload.tensors:
            check_layout(upload.tensors, self.download(state, client, 0))

    def magnitude(self, upload: Upload) -> float:
        """None is compared: clients that do not train send nothing."""
        return 0.0

    def largest_upload(self, state: Tensors) -> int:
        return sum(tensor.nbytes for tensor in state.values())
