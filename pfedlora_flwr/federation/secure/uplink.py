"""Secure aggregation: the server learns the sum of a round's updates, not a single one.

The protocol is Flower's SecAgg+: its mod on the clients (inside `guard.py`), its workflow here,
driven stage by stage from our own loop. Repaired are its masks (`masks.py`), drop-outs before the
keys are shared, and that it says nothing when it stops."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pfedlora_flwr.errors import UserError, brief
from pfedlora_flwr.features.masks.demands import LEAST
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.admission import Admitted, admit_report
from pfedlora_flwr.federation.clients import Clients, RunFailed
from pfedlora_flwr.federation.flower_compat import Key, MaskedSum, silence_workflow
from pfedlora_flwr.federation.messages import Report, taken_in
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.secure import masks
from pfedlora_flwr.federation.secure.figures import SIZE, read
from pfedlora_flwr.federation.secure.guard import terms
from pfedlora_flwr.federation.secure.stages import Stages, Tell
from pfedlora_flwr.federation.uplink import Collected, Uplink
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.rng import SERVER, derive
from pfedlora_flwr.runs.checkpoint import Summed
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.ledger import Cost, parameters, payload_bytes

logger = logging.getLogger(__name__)
_REMEMBERED = 3
"""Rounds whose unmasking is remembered: a resumed run goes back by two at most."""


class _NoSum(Exception):
    """Why the server learns no sum of a round."""


@dataclass
class SecureUplink(Uplink):
    """The sum of a round's updates; it takes the place of `PlainUplink` for methods that average.

    fail, refuse: told of a client without an answer, or without an admitted one, and why.
    """

    run: RunDirectory
    fail: Tell
    asks_for_scores = False

    def __post_init__(self) -> None:
        masks.install()
        silence_workflow()

    def train(self, round: Round, clients: Clients) -> Collected:
        """Takes the round's sampled clients through the four stages. What was collected is one
        upload, θ + Δ̄ of the part of the server's state that the round renews.

        Nothing is unmasked unless enough clients are left. Raises RunFailed if a round that was
        unmasked before would be unmasked for other clients: the difference of the two sums would be
        single updates."""
        e, before = self.experiment, _unmasked(self.run).get(round.number)
        for client in round.sampled:
            if before is not None and client not in before:
                self.fail(
                    round,
                    client,
                    "left out: this round was unmasked without it before the run was stopped",
                )
        nodes = clients.connected(round, round.sampled if before is None else before)
        round.clock.lap("prepare")
        state = self.shared.of(SERVER)
        reports: dict[int, Report] = {}

        def admit(client: int, metrics: Mapping[str, Any]) -> None:
            report = admit_report(
                metrics, client, round.number, e.evaluates(round.number), taken_in(e)
            )
            if before is not None and report.lost:
                raise Refused(
                    "it has lost its model, and this round was unmasked with its other update"
                    " before the run was stopped"
                )
            reports[client] = report

        download = Cost(parameters_down=parameters(state), bytes_down=payload_bytes(state))
        part = self.method.renewed(state, round.number)
        size = sum(tensor.numel() for tensor in part.values())
        stages = Stages(round, clients, download, size, admit, self.fail, self.refuse)
        self.run.progress(phase="training", round=round.number, done=0, of=len(nodes))
        found, reason = None, ""
        try:
            found = self._mean(round, clients, nodes, stages, before)
        except _NoSum as why:
            reason = str(why)
        if round.failures:
            clients.roster.refresh()  # the next round waits for who is gone
        round.clock.lap("wait")
        visits = {}
        for client, report in sorted(reports.items()):
            up = Cost(parameters(part), 0, 4 * (1 + size + SIZE), 0, stages.bytes_up[client])
            visits[client] = Admitted(report, None, up)
        uploads, summed = {}, None
        if found is not None:
            mean, summed = found
            moved = moved_by(part, mean)
            if not e.noises:  # else rounding would come before the noise, which is to hide it
                moved = {name: t.to(part[name].dtype) for name, t in moved.items()}
            uploads = {SERVER: Upload(moved, len(visits) if self.method.adds else 1)}
        return Collected(visits, uploads, reason, summed)

    def _mean(
        self,
        round: Round,
        clients: Clients,
        nodes: Mapping[int, int],
        stages: Stages,
        before: list[int] | None,
    ) -> tuple[npt.NDArray[np.float64], Summed | None]:
        """Δ̄ = Σ n_k Δ_k / Σ n_k over the clients that are left, as one vector, and what else they
        tell together. Raises _NoSum."""
        e, client_of = self.experiment, {node: client for client, node in nodes.items()}
        needed = max(self.execution.enough_of(e.sampled), LEAST, e.noising)

        def too_few(left: Iterable[int]) -> _NoSum:
            clients = sorted(client_of[node] for node in left)
            # it may not be skipped, as another round with too few may
            _check_repeat(round.number, clients, before)
            told = f"{len(clients)} of {e.sampled} clients are left"
            if len(clients) < needed:
                return _NoSum(f"{told}, {needed} are needed to unmask")
            return _NoSum(
                f"{told}, and too few of them hold some client's shares: raise secagg.shares"
            )

        if len(nodes) < needed:
            raise too_few(client_of)
        agreed = terms(e, self.execution, len(nodes))
        needed = max(needed, int(agreed[Key.THRESHOLD]))
        ring = derive(e.seed, "neighbours", round.number)
        total = MaskedSum(stages, list(client_of), round.number, agreed, ring)
        if not total.share_keys():
            raise too_few(total.left)
        written = {
            node: clients.write(round, client_of[node], node, "training")[0]
            for node in sorted(total.left)
        }
        sent, *others = {
            masks.received(e, wire.fit_instruction(message), total.members)
            for message in written.values()
        }
        if others:
            raise UserError(
                f"method {e.method} gives clients different downloads, so their uploads cannot be"
                " summed under masks"
            )
        enough = total.collect({node: message.content for node, message in written.items()})
        left = sorted(client_of[node] for node in total.left)
        _check_repeat(round.number, left, before)
        if not enough or len(left) < needed:
            raise too_few(total.left)
        _remember(self.run, round.number, left)
        try:
            with masks.bound_to(sent):
                means = total.unmask()
        except RunFailed:
            raise
        except Exception as error:  # a share that is none, of whom nobody can tell
            raise _NoSum(
                f"the masks cannot be removed ({brief(error)}): a client's shares are wrong,"
                " nobody can tell whose"
            ) from error
        if means is None:
            for client, why in sorted(stages.withheld.items()):
                self.fail(round, client, why)
            raise _NoSum(f"too few shares came to unmask: {len(total.left)} clients answered")
        if e.masked_weight == 1 and total.weight != len(left) * LEVELS:
            # with another total an update would count more than its clip over K
            raise _NoSum(
                "the weights in the sum are not 1 each, as this run has them: a client's upload is"
                " wrong, nobody can tell whose"
            )
        mean, _ = means
        slack = 1 + 2 * e.masked_weight / LEVELS  # of the rounding, at the least weight
        if not np.abs(mean).max(initial=0.0) <= slack * e.secagg.clip:  # NaN is not
            raise _NoSum(
                f"the sum is beyond secagg.clip, {e.secagg.clip:g}: a client's upload or shares are"
                " wrong, nobody can tell whose"
            )
        try:
            return mean, read(total.figures, len(left), e.evaluates(round.number))
        except Refused as refusal:
            logger.warning("round %d: no scores: %s", round.number, refusal)
            return mean, None


def moved_by(state: Tensors, by: npt.NDArray[np.float64]) -> Tensors:
    """θ + Δ̄, in float64."""
    parts = torch.split(
        torch.from_numpy(np.array(by)), [tensor.numel() for tensor in state.values()]
    )
    moved = zip(state.items(), parts, strict=True)
    return {name: tensor.double() + part.reshape(tensor.shape) for (name, tensor), part in moved}


def _unmasked(run: RunDirectory) -> dict[int, list[int]]:
    """By round of the last ones, the clients whose sum was unmasked, or was about to be."""
    path = run.unmasking_file
    if path.exists():
        return {row["round"]: row["clients"] for row in json.loads(path.read_text())}
    return {}


def _check_repeat(round: int, left: list[int], before: list[int] | None) -> None:
    """Raises RunFailed if the round was unmasked before for other clients than are left now."""
    if before is not None and left != before:
        was, now = (", ".join(map(str, found)) for found in (before, left))
        raise RunFailed(
            f"round {round} was unmasked for the clients {was} before the run was stopped, and"
            f" {now or 'none'} are left now: the difference of two sums shows single updates;"
            " resume when all of them are back"
        )


def _remember(run: RunDirectory, round: int, clients: list[int]) -> None:
    last = sorted((_unmasked(run) | {round: clients}).items())[-_REMEMBERED:]
    write_atomically(
        run.unmasking_file,
        json.dumps([{"round": number, "clients": k} for number, k in last]).encode(),
    )
