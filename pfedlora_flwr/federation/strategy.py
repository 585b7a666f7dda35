"""The server's rounds: sample, send, admit, aggregate, checkpoint, record. One Strategy serves
every method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features import phases
from pfedlora_flwr.federation import rows, wire
from pfedlora_flwr.federation.chain import Chain
from pfedlora_flwr.federation.clients import Clients, Phase, Replies, RunDiverged, RunFailed
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.link import Server
from pfedlora_flwr.federation.messages import (
    Instruction,
    counts_from_metrics,
    withheld_in,
    written,
)
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.server_state import NotFinite, shared_by
from pfedlora_flwr.federation.uplink import Collected, PlainUplink
from pfedlora_flwr.methods.method import Method, Refused, Tensors
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.rng import sample_clients
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.data_name import data_told
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import origin_of
from pfedlora_flwr.runs.ledger import Cost, parameters, payload_bytes
from pfedlora_flwr.runs.result import best_round, best_versions, ends_early
from pfedlora_flwr.runs.rows import REFUSED, RoundRow, accuracy_of
from pfedlora_flwr.runs.shared_state import download
from pfedlora_flwr.runs.site_names import names_told
from pfedlora_flwr.site.egress import COSTS
from pfedlora_flwr.training.flops import count_operations

logger = logging.getLogger(__name__)


@dataclass
class PersonalisedStrategy:
    """Drives a `Method` over Flower's Message API. `state` is the server's memory, checkpointed
    after each round, of which `told` then gets the line, and may give back what stops the run.

    `complete` goes on from any checkpoint, bounds every wait and asks a client that failed once
    more."""

    experiment: Experiment
    execution: Execution
    method: Method
    run: RunDirectory
    state: ServerState
    told: Callable[[RoundRow], RunStopped | None] = lambda row: None

    def __post_init__(self) -> None:
        e, x = self.experiment, self.execution
        self.chain = Chain(e, self.method, Server(x, self.run, self.state))
        self.shared = shared_by(e, self.run, self.state, self.chain.aggregate)
        self.uplink = self.chain.way_up(
            self.shared, self._fail, self._refuse_update
        ) or PlainUplink(e, x, self.method, self.shared, self._refuse_update)
        # of the rounds so far, where they decide when to end, or what is kept
        self._looks_back = bool(e.stop.patience) or x.keeps_best
        self._rows = self.run.rounds() if self._looks_back else []
        self._data = ""
        self._origins, self._begun_after = self.run.origins(), self.run.begun_after
        self._pinned = [kept.versions for kept in self.run.checkpoints.pinned().values()]
        # of the best round, and of the one that was before
        self._best = list[Mapping[int, int]]()
        if x.keeps_best and self._rows:
            self._best.append(best_versions(self.run, e, self._rows, x.verdict_score))

    @property
    def ended(self) -> bool:
        """Whether the run is over before its last round, by `stop.patience`."""
        return ends_early(self.experiment, self._rows)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        e, done = self.experiment, self.state.round
        return (self.ended or done >= e.rounds) and not phases.is_due(e, self.run, done)

    def complete(self, grid: Grid) -> None:
        """All rounds that are left.

        Raises RunFailed when too few nodes connect or too few clients succeed, RunStopped where an
        observer stops it."""
        e = self.experiment
        self.summary()
        # a completed run is resumed without its nodes
        if self.is_done:
            return
        clients, clock = self._connect(grid), Clock()
        asks = self.uplink.asks_for_scores
        if asks and e.evaluate_initial and not self.state.counts and not self.state.round:
            initial = Round(0, [], clock)
            self._evaluate(initial, clients)
            clock = self._finish(initial, clients)
        clock = self._between(clients, clock)
        while self.state.round < e.rounds and not self.ended:
            clock.lap("record")  # the round before
            round = self._round(self.state.round + 1, clock)
            self._merge(round, self.uplink.train(round, clients))
            clock.lap("aggregate")
            if asks and self.state.stale and e.evaluates(round.number):
                self._evaluate(round, clients)
            clock = self._finish(round, clients)
            clock = self._between(clients, clock)
        if self.execution.keeps_best:
            self._tell_best(clients)

    def _tell_best(self, clients: Clients) -> None:
        """Tells the nodes that keep their models which version is that of the best round."""
        chosen = {
            client: Instruction(
                round=self.state.round,
                client=client,
                version=version,
                token=self.run.token,
                run=str(self.run.path),
                evaluate=False,
                names=[],
                data=self._data or None,
            )
            for client, version in (self._best or [{}])[-1].items()
            if version
        }
        clients.tell_best({client: written(told) for client, told in chosen.items()})

    def summary(self) -> None:
        """One line about the run in Flower's log; of its data the nodes tell, once connected."""
        e = self.experiment
        begins = f", going on after round {self.state.round}" if self.execution.resume else ""
        text = "%s: %d clients, %d a round, %d rounds, into %s%s"
        logger.info(text, e.method, e.clients, e.sampled, e.rounds, self.run.path, begins)
        for note in self.chain.notes:
            logger.info("%s", note)

    # A round

    def _connect(self, grid: Grid) -> Clients:
        e, x, run = self.experiment, self.execution, self.run
        left = e.gone(self.state.round + 1)
        clients = Clients(grid, self.method, x, run, left, self._message, self._fail, self._refuse)
        self._data = clients.roster.data
        logger.info("data: %s", data_told(run, e, self.method.task))
        for client, name in sorted(names_told(run).items()):
            logger.info("client %d is site %s", client, name)
        for client, rules in sorted(clients.roster.withheld.items()):
            told = "; ".join(COSTS.get(rule, rule) for rule in rules)
            logger.info("client %d keeps something back by its site's policy: %s", client, told)
        there, classes = len(clients.roster.class_names), self.method.task.classes
        if e.classes is None and clients.roster.own and 0 < there < classes:
            text = "warning: classes is auto, which is %d, and the sites' data have %d: set classes"
            logger.warning(text, classes, there)
        return clients

    def _round(self, number: int, clock: Clock) -> Round:
        e = self.experiment
        sampled = sample_clients(e.seed, number, e.clients_in(number), e.sampled_in(number))
        self.state.forget_evaluations(e.gone(number))
        round = Round(number, sampled, clock, exchanges_lora=self.method.shares_lora)
        self.chain.begin(round)
        return round

    def _merge(self, round: Round, collected: Collected) -> None:
        """Merges the admitted uploads, in client order. Raises RunFailed below `min-success`,
        RunDiverged where the merged state is not finite."""
        e, state = self.experiment, self.state
        visits, uploads = collected.visits, collected.uploads
        for client, reason in self.chain.refused(uploads).items():
            self._refuse_update(round, client, reason)
            del visits[client], uploads[client]
        reason = collected.reason or self.chain.too_few(uploads, round)
        state.round = round.number
        if e.evaluates_as_last(round.number):
            state.keep_evaluations()
        if not self._enough(
            round, f"round {round.number}", len(visits), len(round.sampled), reason
        ):
            return
        state.failed_rounds = 0
        round.visits = visits
        if uploads:
            try:
                with count_operations() as operations:
                    self.shared.merge(uploads, round)
            except NotFinite as error:
                raise RunDiverged(round.number, str(error)) from error
            round.server_flops = operations.total
        if summed := collected.summed:
            state.take_sum(summed)
        for client, visit in visits.items():
            report = visit.report
            state.train(client, round.number, report.model_sha256)
            if report.counts is not None:
                state.counts[client] = report.counts
            if report.counts is not None or "scores" in (report.withheld or ()):
                state.stale.discard(client)
            if report.other_accuracies:
                state.other_accuracies[client] = report.other_accuracies
            if report.lost:
                logger.warning(
                    "client %d had lost its model: it started again from its initial one", client
                )

    def _evaluate(self, round: Round, clients: Clients) -> None:
        """Evaluates the clients whose last evaluation is older than their model: all of them before
        round 1."""
        wanted = self.experiment.clients_in(0) if round.number == 0 else sorted(self.state.stale)
        messages = clients.messages(round, wanted, "evaluating")
        answered = self._take_counts(round, clients.ask(round, messages, "evaluating"))
        known = self.state.versions.keys() | self.state.counts.keys()
        there = known - self.experiment.gone(round.number).keys()
        trained = there if round.number else set(wanted)
        current = answered if not round.number else trained - self.state.stale
        self._enough(round, f"the evaluation of round {round.number}", len(current), len(trained))
        round.clock.lap("evaluate")

    def _take_counts(self, round: Round, replies: Replies) -> set[int]:
        """The clients that have answered, of which some may withhold their scores."""
        answered = set[int]()
        for client, reply in replies.items():
            try:
                if "scores" not in withheld_in(reply.metrics):
                    self.state.counts[client] = counts_from_metrics(reply.metrics)
                self.state.stale.discard(client)
                answered.add(client)
            except Refused as refusal:
                self._refuse_update(round, client, str(refusal))
        return answered

    def _between(self, clients: Clients, clock: Clock) -> Clock:
        """What is to be done after the state's round. The next round's clock. Raises RunFailed
        below `min-success`: a resumed run asks again."""
        e, run, number = self.experiment, self.run, self.state.round
        if not phases.is_due(e, run, number):
            return clock
        phases.carry_out(e, run, number, clients, self._refuse_update, self._enough)
        return Clock()

    def _enough(
        self, round: Round, what: str, succeeded: int, asked: int, reason: str = ""
    ) -> bool:
        """Whether the share of successes reaches `min-success`, and there is no other reason
        against it.

        Where it does not, the round is counted as failed. Raises RunFailed for the
        `max-failed-rounds`th in a row, RunDiverged where all that failed in it have diverged."""
        x = self.execution
        wanted = x.enough_of(asked)
        if succeeded >= wanted and not reason:
            return True
        if not round.failed:  # its evaluation may fail, too
            self.state.failed_rounds += 1
        round.failed = True
        if self.state.failed_rounds >= x.max_failed_rounds:
            found = f"{succeeded} of {asked} clients succeeded"
            told = reason or f"{found}, min-success={x.min_success:g} wants {wanted}"
            if round.failures and round.failures.keys() <= round.diverged.keys():
                client, *more = sorted(round.diverged)
                others = f" (and {len(more)} more)" if more else ""
                raise RunDiverged(
                    round.number, f"client {client}: {round.diverged[client]}{others}"
                )
            raise RunFailed("; ".join([f"{what}: {told}", *round.told_failures()]))
        logger.warning("%s: %s", what, reason or f"only {succeeded} of {asked} clients succeeded")
        return False

    def _finish(self, round: Round, clients: Clients) -> Clock:
        """The round's lines, then its checkpoint: a resumed run drops the lines of a round that has
        none. The next round's clock.

        Raises RunStopped if an observer stops the run and rounds are left."""
        state, next_clock = self.state, Clock()
        visits = rows.visit_rows(round)
        row = rows.round_row(round, state, visits, self.chain.line(visits))
        state.totals += round.cost()
        state.server_flops += round.server_flops
        state.seconds += row["seconds"] if round.number else 0.0
        state.training_seconds += row["training_seconds"]
        state.busy_seconds += row["training_seconds"] + row["evaluation_seconds"]
        clients.learn(visits, row["workers"])
        self.run.append_visits(visits)
        self.run.append_round(row)
        self._pinned += self.run.save_state(state, self.experiment)
        e, x = self.experiment, self.execution
        if self._looks_back:
            self._rows.append(row)
        if x.keeps_best and best_round(e, self._rows, x.verdict_score)["round"] == round.number:
            self._best = [*self._best[-1:], dict(state.versions)]
        if self.ended:
            text = "%d rounds without a better validation: round %d is the last (stop.patience)"
            logger.info(text, self.experiment.stop.patience, round.number)
        stop = self.told(row)
        self.run.progress(phase="round", round=round.number)
        who = f"{len(visits)} of {len(round.sampled)} clients" if round.number else "initial models"
        known = accuracy_of(row)
        said = "not evaluated yet" if known is None else f"accuracy {known:.4f}"
        text = "round %d/%d · %s · %s · %.1f s"
        logger.info(text, round.number, self.experiment.rounds, said, who, row["seconds"])
        if stop is not None and state.round < self.experiment.rounds and not self.ended:
            raise stop
        return next_clock

    # What the clients are told, and what they are refused

    def _message(self, round: Round, client: int, node: int, phase: Phase) -> tuple[Message, Cost]:
        e, seconds = self.experiment, self.execution.round_timeout
        training, adapting = phase == "training", phase == "adapting"
        down: Tensors = {}
        if training:
            down = self.method.download(self.shared.of(client), client, round.number)
        elif adapting:
            down = download(self.method, self.state.tensors, client, round.number)
        version = self.state.versions.get(client, 0)
        told = Instruction(
            round=round.number,
            client=client,
            version=version,
            token=self.run.token,
            run=str(self.run.path),
            evaluate=not training or e.evaluates(round.number),
            names=list(down),
            adapt=adapting or None,
            origin=origin_of(version, self._origins),
            renewed=0 < version <= self._begun_after or None,
            keep=sorted({k[client] for k in self._pinned + self._best if client in k}) or None,
            data=self._data or None,
        )
        config = written(told)
        if not training:
            return wire.evaluate_message(node, round.number, config, seconds, down), Cost()
        message = wire.train_message(node, round.number, down, config, seconds)
        return message, Cost(
            parameters_down=parameters(down),
            bytes_down=payload_bytes(down),
            wire_down=wire.size_of(message.content),
        )

    def _refuse(self, reason: str) -> None:
        """A message or a node that is refused and belongs to no client."""
        self.state.refused += 1
        logger.warning("%s", reason)

    def _refuse_update(self, round: Round, client: int, reason: str) -> None:
        self.state.refused += 1
        self._fail(round, client, f"{REFUSED}{reason}")

    def _fail(self, round: Round, client: int, reason: str) -> None:
        reason = round.fail(client, reason)
        logger.warning("round %d: client %d: %s", round.number, client, reason)
        self.run.append_visits([rows.failed_visit(round.number, client, reason)])
