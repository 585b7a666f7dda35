"""The NumPyClient: loads the client's model, lets the method train it, evaluates, saves, and sends
the upload."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import Tensor, nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data import outputs
from pfedlora_flwr.data.local import LocalData, Site, site_settings, without_own_folders
from pfedlora_flwr.errors import (
    UserError,
    brief,
    differing,
    for_users,
    permissions,
    told,
    with_traceback,
)
from pfedlora_flwr.execution import MOST_ANCHORS
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features import phases
from pfedlora_flwr.features.demands import terms_of
from pfedlora_flwr.federation import messages, wire
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.federation.chain import Chain
from pfedlora_flwr.federation.claim import Claim
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.flower_compat import NumPyClient
from pfedlora_flwr.federation.messages import Config, Instruction, Report
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.federation.node_config import number_in
from pfedlora_flwr.federation.nodes import this_node
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Upload
from pfedlora_flwr.methods.pooled import Pooled
from pfedlora_flwr.models import text
from pfedlora_flwr.models.anchored import anchors_base, stamp_at
from pfedlora_flwr.models.kept import base_of, kept, restore, stored
from pfedlora_flwr.models.named import random_weights, without_path
from pfedlora_flwr.models.registry import check_lora
from pfedlora_flwr.models.spec import ANCHORS
from pfedlora_flwr.runs import right_rows
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.clear import in_the_clear
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import told_versions
from pfedlora_flwr.runs.renewal import grown, more_sent
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.runs.trained import about_of
from pfedlora_flwr.site.egress import limited_upload, taking_part, vouched
from pfedlora_flwr.site.policy import ledger_for, policy_for
from pfedlora_flwr.training import lanes
from pfedlora_flwr.training.device import channels_last, find_device
from pfedlora_flwr.training.kinds import TEXT

logger = logging.getLogger(__name__)
Arrays = list[npt.NDArray[Any]]
_SIMULATED = {"partition-id", "num-partitions"}
"""What Flower tells a node of a simulation."""
_ERRORS = (Exception, SystemExit)
"""What a user's code may raise; the process that calls it goes on."""


class PersonalisedClient(NumPyClient):
    """The client of one node. Its data and model never leave it; an error becomes one line in the
    reply."""

    def __init__(
        self,
        experiment: Experiment,
        node_config: Mapping[str, Any],
        data_path: str = "",
        scores: Sequence[str] | None = None,
        run: int = 0,
    ) -> None:
        """data_path: the run's, where the node's own settings, which come first, name none.
        scores: what is told of an evaluation, of `scores_told`. run: Flower's number of it."""
        by_anchors = experiment.representation.startswith(ANCHORS)
        self.sent_anchors = permissions.sent_anchors(node_config) if by_anchors else None
        own = node_config.get(permissions.ANCHORS)  # the run names the server's copy
        if self.sent_anchors:
            self._of_run = link = self.sent_anchors / f"run-{run}"
            own = str(link.with_name(os.readlink(link)) if link.is_symlink() else link)
        if own and by_anchors:
            experiment = experiment.replace(representation=f"{ANCHORS}{own}")
        self.scores = scores
        self.node_config = node_config
        self.where = ({"data-path": data_path} if data_path else {}) | dict(node_config)
        self._use(experiment)
        self.device = find_device(experiment.device)
        self.ledger = ledger_for(node_config)
        self._vouched = Config()  # of the evaluation, for the gate

    def _use(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.setup = Setup(experiment, str(self.where.get("data-path", "")))

    def get_properties(self, config: Config) -> Config:
        """Who this node is; or of how many, where it is asked that."""
        try:
            if wire.COUNT in config:
                parts = number_in(self.node_config, wire.COUNT)
                return {} if parts is None else {wire.COUNT: parts}
            if wire.BEST in config:
                told = self._instruction(config)
                self._store(told).choose(told.version)
                return {}
            if self.sent_anchors and messages.ANCHORS in config:
                self._keep_anchors(config[messages.ANCHORS])
            return messages.written(self._claim(str(config.get(messages.DATA, ""))))
        except _ERRORS as error:
            return self._failure(error, config, self._known_as())

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        """A visit: the two phases of pFedLoRA, or whatever the method does."""
        try:
            upload, report = self._visit(self._instruction(config), parameters)
            metrics, e = messages.written(report), self.experiment
            if e.hides_clients and not e.hides_uploads:  # the guard withholds what it has summed
                clear = in_the_clear(e, scores_told=True)
                metrics = {name: value for name, value in metrics.items() if name in clear}
            return wire.to_arrays(upload.tensors), upload.samples, metrics | self._vouched
        except _ERRORS as error:
            return [], 0, self._failure(error, config)

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, Config]:
        """The accuracy of the model as it is, or of a held-out client's that is adapted; nothing is
        saved."""
        try:
            told = self._instruction(config)
            if told.adapt:
                phases.check(self.experiment, told.client)
                return self._adapt(told, parameters)
            counts = self._evaluate(told)
            return 0.0, counts.test, messages.written(counts) | self._vouched
        except _ERRORS as error:
            return 0.0, 0, self._failure(error, config)

    def _keep_anchors(self, sent: object) -> None:
        """Keeps the file that the server sends, by its hash, as the run's."""
        assert self.sent_anchors
        if not isinstance(sent, bytes) or len(sent) > MOST_ANCHORS * 10**6:
            raise UserError(f"the server sends anchors of more than {MOST_ANCHORS} MB")
        file = self.sent_anchors / hashlib.sha256(sent).hexdigest()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, sent)
        self._of_run.unlink(missing_ok=True)
        self._of_run.symlink_to(file.name)
        self._use(self.experiment.replace(representation=f"{ANCHORS}{file}"))

    def _claim(self, data: str) -> Claim:
        """data: what the dataset is known by in the run's other processes, if that is known."""
        part = number_in(self.node_config, "partition-id")
        own = "dataset" in self.node_config
        if self.experiment.method == registry.POOLED and not self._simulated:
            raise UserError(
                f"method {self.experiment.method} trains on all clients' rows, and a site's do not"
                " leave it: it is a reference only for simulations"
            )
        if part is None and not own:
            raise UserError(
                "the node-config has neither partition-id, the number of its part of the dataset,"
                " nor dataset, its own data"
            )
        parts = number_in(self.node_config, wire.COUNT)
        if parts not in (None, self.experiment.clients):
            raise UserError(
                f"num-partitions is {parts} in the node-config, clients is"
                f" {self.experiment.clients}: make them equal"
            )
        client = -1 if part is None else part
        site = self._site(client)
        site.check_data(data)
        return Claim(
            partition_id=client,
            partition=site.fingerprint,
            classes=list(site.dataset.class_names) if own else [],
            name=self._name() if client < 0 else "",
            columns=list(site.dataset.feature_names or ()) if own else [],
            base=self._base(site),
            data=site.data,
            versions=told_versions(),
        )

    def _base(self, site: Site) -> str:
        """What the weights are known by in which LoRA is exchanged, or else the tokeniser where all
        clients have one model; it must be one everywhere. Raises UserError where LoRA would train
        nothing."""
        method = self.setup.method
        check_lora(site.model, site.task)
        if method.shares_lora:
            return base_of(method.client_model(0))
        if site.model.anchors:
            if self.sent_anchors and not self._of_run.exists():
                raise UserError(
                    "anchors is sent in its node-config, and the run sends none: set anchors.send"
                )
            return anchors_base(stamp_at(Path(site.model.anchors)))
        one = site.task.kind == TEXT and len({*method.model_names}) == 1
        return text.reader(site.model.name) if one else ""

    def _instruction(self, config: Config) -> Instruction:
        """What this node is told. Raises UserError when it is for another client; a simulation's
        node is any client."""
        instruction = Instruction.from_config(config)
        own, asked = number_in(self.node_config, "partition-id"), instruction.client
        if own not in (None, asked) and not self._simulation(instruction.run, instruction.token):
            raise UserError(f"it was asked as client {asked}, and its partition-id is {own}")
        if self.ledger:
            self.ledger.enter(instruction.token)
        self._site(asked).check_data(instruction.data or "")
        return instruction

    def _visit(self, told: Instruction, parameters: Arrays) -> tuple[Upload, Report]:
        clock = Clock()
        if self.ledger and not self.experiment.noises_gradients:  # what those cost depends on data
            self.ledger.spend(told.token, terms_of(self.experiment, None))
        data, method, own_data = self._load(told.client)
        if isinstance(method, Pooled) and method.trains(told.client, told.round):
            train = self._site(told.client).pooled(self.setup, told.round, self.device)
            data = replace(data, train=train)
        model, lost = self._model(method, told, own_data)
        if lost and method.adds:
            raise UserError(
                f"it no longer has what it sent in round {told.version}, which is in the sums;"
                " restore its model of that round, or begin a new run"
            )
        received = {
            n: t.to(self.device) for n, t in wire.to_tensors(told.names, parameters).items()
        }
        once = {} if told.version and not lost else outputs.operations(model, data, self.experiment)
        data = outputs.with_outputs_kept(model, data, self.experiment, evaluated=told.evaluate)
        clock.lap("load")
        chain = Chain(self.experiment, method)
        store = self._store(told)
        folder = store.folder
        if number_in(self.node_config, "partition-id") is None:
            folder = folder.parent  # its data is the same whatever number it has
        noise, drawn = chain.draw(told, folder, len(data.train), self.ledger)
        upload, visit = visits.visit(
            method,
            model,
            received,
            data.train,
            told.client,
            told.round,
            noise,
            data.validation,
        )
        visit.flops = once | visit.flops
        upload = chain.client_out(upload, received, visit)
        policy = policy_for(self.node_config)
        upload = limited_upload(
            policy,
            upload,
            data.train.labels,
            method.rows_sent(self.experiment),
        )
        for demand in policy.demands():
            own = {told.client: upload}
            demand.sent(store.folder, told.round, received, own, len(data.train))
        clock.lap("train")
        counts, others = None, {}
        if told.evaluate:
            counts = self._scored(told, method, model, data)
            if len(data.test) and not self.experiment.hides_clients:
                others = visits.other_accuracies(method, model, received, data.test)
        clock.lap("evaluate")
        digest = store.save(
            told.round, stored(model), told.version, counts, base_of(model), told.keep, own_data
        )
        store.write_about(
            self.experiment.rounds,
            site_settings(self.where),
            lambda: about_of(self._site(told.client), self.experiment, told.client, self.where),
        )
        MODELS.put(told.token, told.client, told.round, model)
        clock.lap("save")
        return upload, Report(
            round=told.round,
            client=told.client,
            names=list(upload.tensors),
            model_sha256=None if self.experiment.noises else digest,
            worker=lanes.worker(),
            node=this_node(),
            counts=counts,
            model=without_path(method.model_of(told.client)),
            lost=lost,
            loss=next(iter(visit.losses.values()), 0.0),
            losses=visit.losses,
            other_accuracies=others,
            flops_by_phase=visit.flops,
            seconds=clock.laps,
            **drawn,
        )

    def _evaluate(self, told: Instruction) -> Counts:
        data, method, own_data = self._load(told.client)
        model, lost = self._model(method, told, own_data)
        if lost:
            raise UserError(
                f"its model of round {told.version} is missing or damaged: restore it, or lower"
                " min-success to go on without it"
            )
        data = outputs.with_outputs_kept(model, data, self.experiment, train=False)
        counts = self._scored(told, method, model, data)
        if told.version:
            MODELS.put(told.token, told.client, told.version, model)
        return counts

    def _scored(self, told: Instruction, method: Method, model: Any, data: LocalData) -> Counts:
        if self.experiment.hides_uploads and not (len(data.validation) and len(data.test)):
            raise UserError("it has fewer samples to evaluate on than egress.step is here")
        policy = policy_for(self.node_config)
        self._vouched = vouched(policy, data.validation.labels, data.test.labels)
        classes = self._site(told.client).dataset.class_names
        return visits.evaluate(method, model, data, self._keep_rows(told), self.scores, classes)

    def _keep_rows(self, told: Instruction) -> Callable[[Tensor], None] | None:
        """What keeps which test rows the model has right: in a simulation without masks alone."""
        run = self._simulation(told.run, messages.folder_name(told.token))
        if run is None or self.experiment.hides_uploads:
            return None
        file, site = run.right_rows(told.client), self._site(told.client)
        test = site.split.test
        labels = site.dataset.labels[test]
        return lambda right: right_rows.keep(file, told.round, test, labels, right.cpu().numpy())

    def _adapt(self, told: Instruction, parameters: Arrays) -> tuple[float, int, Config]:
        site = self._site(told.client)
        method = replace(self.setup).method
        received = wire.to_tensors(told.names, parameters)
        rows = [*phases.adapted(method, received, site, told.client, told.round, self.device)]
        return 0.0, rows[0]["test"], messages.adapted_to_metrics(rows)

    def _load(self, client: int) -> tuple[LocalData, Method, str]:
        """The client's samples, the method, and what its own data is known by."""
        policy = policy_for(self.node_config)
        site = taking_part(policy, self._site(client), self.experiment.seed, client)
        return site.load(self.device), replace(self.setup).method, site.own_data

    def _name(self) -> str:
        """What a node without a partition-id is known by: a random name, kept in its state-path."""
        path = self._state_path() / "name"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, secrets.token_hex(16).encode())
            return path.read_text()
        except OSError as error:
            raise UserError(f"state-path {path.parent}: {error.strerror}") from None

    def _known_as(self) -> str | int:
        """Its partition-id, or else that name; empty where there is none."""
        with suppress(OSError, UserError):
            if (part := number_in(self.node_config, "partition-id")) is not None:
                return part
            return (self._state_path() / "name").read_text()
        return ""

    def _state_path(self) -> Path:
        if "state-path" not in self.node_config:
            raise UserError(
                "the node-config has no state-path, the folder where this node keeps its model"
            )
        return Path(str(self.node_config["state-path"])).expanduser()

    def _site(self, client: int) -> Site:
        return Site.find(self.experiment, client, self.where)

    def _model(self, method: Method, told: Instruction, own_data: str) -> tuple[nn.Module, bool]:
        """The client's module at the version the server names; and whether that version is lost and
        it starts anew. Raises UserError if it was trained on other data than `own_data`: the parts
        are drawn from all of it, so that samples move from the training part to the others."""
        store = self._store(told) if told.origin is None else self._own_store(told, told.origin)
        if not self._simulated and told.version in store.versions():
            self._check_kept(method, store, told)
        cached = MODELS.take(told.token, told.client, told.version)
        if cached is not None:
            return cached, False
        stored = store.load(told.version) if told.version else None
        was = "" if stored is None or told.renewed else store.data(told.version)
        if was and was != own_data:
            raise UserError(
                f"its data is not what its model of round {told.version} was trained on: training"
                " and test parts would mix; restore it, or begin a new run with start-from"
            )
        with nullcontext() if stored is None else random_weights():
            model = method.initial_model(told.client)
        if stored is not None:
            what = f"its model of round {told.version}"
            if told.renewed:
                stored = grown(what, stored, kept(model), method.classes)
            restore(what, model, stored, store.base(told.version))
        return channels_last(model.to(self.device)), bool(told.version) and stored is None

    def _check_kept(self, method: Method, store: ClientStore, told: Instruction) -> None:
        """Raises UserError unless a model that this node keeps may be gone on from, whatever run
        the server names: what was kept at home stays there, and a class keeps its number."""
        about, e = store.about(), method.experiment
        if told.renewed:
            names, known = self._site(told.client).dataset.class_names, about["class_names"]
            if list(names[: len(known)]) != list(known):
                wrong = differing("classes", names, "its earlier model's", known)
                raise UserError(f"{wrong}: name all of them in data.class-names, new ones last")
        earlier = from_flat(about["experiment"])
        if (
            policy_for(self.node_config).start_from == "any"
            or earlier.replace(rounds=e.rounds) == e
        ):
            return
        if why := more_sent(registry.make(earlier, method.task), method):
            raise UserError(f"start-from: {why}; start-from=any in its rules allows that")

    def _store(self, told: Instruction) -> ClientStore:
        """A simulated client keeps its model in the run's directory, a real node under its own
        `state-path`."""
        token = messages.folder_name(told.token)
        run = self._simulation(told.run, token)
        return run.client_store(told.client) if run else self._own_store(told, token)

    def _own_store(self, told: Instruction, token: str) -> ClientStore:
        """Where a real node keeps its model of the run that is called `token`."""
        return ClientStore(self._state_path() / messages.folder_name(token) / str(told.client))

    @property
    def _simulated(self) -> bool:
        """Whether this is a simulation's node: on the user's own machine, and told no more than
        Flower tells one."""
        return permissions.own_machine() and not self.node_config.keys() - _SIMULATED

    def _simulation(self, run: str, token: str) -> RunDirectory | None:
        """The run's directory, where server and clients share it; None on a real node, and on one
        whose node-config says more than Flower's own."""
        directory = RunDirectory(Path(run))
        if not (self._simulated and token.isalnum()):
            return None
        try:
            return directory if directory.token == token else None
        except OSError:
            return None

    def _failure(self, error: BaseException, config: Config, name: str | int = "") -> Config:
        """The reply to whatever went wrong: one line for the server, which does not say where the
        node's own files lie; the node's log does. What is no user's error leaves its traceback in
        the run's directory or, on a real node, in the node's log, and where the run hides its
        clients its text there alone."""
        if said := for_users(error):
            line = without_own_folders(said, self.node_config)
            if line != said:
                logger.warning("%s", said)
            return messages.failure(line, name)
        logger.error("the client failed", exc_info=error)
        run = self._simulation(str(config.get("run", "")), str(config.get("token", "")))
        line = told(error) if self.experiment.hides_clients else brief(error)
        return messages.failure(
            with_traceback(line, error, run.traceback_file)
            if run
            else f"{without_own_folders(line, self.node_config)} (see the node's log)",
            name,
        )
