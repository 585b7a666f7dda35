"""The NumPyClient: load the client's model, let the method train it, evaluate, save, send what the method sends."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from flwr.client import NumPyClient
from torch import nn

from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, tensors_of
from pfedlora_flwr.rng import derive, torch_generator
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import versions
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.training.device import find_device
from pfedlora_flwr.training.loop import Samples, Visit, count_correct

logger = logging.getLogger(__name__)
_CACHED_BYTES = 64 * 2**20


class ModelCache:
    """Modules this process has just used, by (run, client), each tagged with its version; the least recently used go first."""

    def __init__(self, limit: int = _CACHED_BYTES) -> None:
        self.limit = limit
        self._held: OrderedDict[tuple[str, int], tuple[int, nn.Module, int]] = OrderedDict()

    def take(self, run: str, client: int, version: int) -> nn.Module | None:
        """The module if it is at `version`. It leaves the cache: a turn that fails half-way must not be found again."""
        held = self._held.pop((run, client), None)
        return held[1] if held and held[0] == version else None

    def put(self, run: str, client: int, version: int, module: nn.Module) -> None:
        size = sum(t.numel() * t.element_size() for t in module.state_dict().values())
        self._held[run, client] = version, module, size
        while sum(size for _, _, size in self._held.values()) > self.limit and len(self._held) > 1:
            self._held.popitem(last=False)


_CACHE = ModelCache()


class PersonalisedClient(NumPyClient):
    """One client in one process. Its data and model never leave it; an error becomes one line in the reply."""

    def __init__(self, experiment: Experiment, node_config: Mapping[str, Any]) -> None:
        self.experiment = experiment
        self.node_config = node_config
        self.client = -1
        """This node's number; -1 until the server has told a node of its own data without a partition-id."""
        self.device = find_device(experiment.device)
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.set_float32_matmul_precision("high")  # TF32 products, as cuDNN's convolutions have by default
            _CACHE.limit = torch.cuda.get_device_properties(self.device).total_memory // 4

    def get_properties(self, config: wire.Config) -> wire.Config:
        """Who this node is: its partition-id or name, the fingerprint of the partition its data comes from, its own data's classes."""

        def answer() -> wire.Config:
            self.client = int(self.node_config.get("partition-id", -1))
            own = "dataset" in self.node_config
            if self.client < 0 and not own:
                raise UserError(
                    "the node-config has neither partition-id, the number of its part of the dataset, nor dataset, its own data"
                )
            parts = self.node_config.get("num-partitions", self.experiment.clients)
            if parts != self.experiment.clients:
                raise UserError(f"num-partitions is {parts} in the node-config, clients is {self.experiment.clients}: make them equal")
            site = self._site()
            names = json.dumps(site.dataset.class_names) if own else "[]"
            name = self._name() if self.client < 0 else ""
            return {"partition-id": self.client, "partition": site.fingerprint, "classes": names, "name": name}

        return self._guarded(answer)

    def fit(self, parameters: list[npt.NDArray[Any]], config: wire.Config) -> tuple[list[npt.NDArray[Any]], int, wire.Config]:
        """A round's turn: the two phases of pFedLoRA, or whatever the method does."""
        arrays: list[npt.NDArray[Any]] = []
        samples = 0

        def turn() -> wire.Config:
            nonlocal arrays, samples
            self._take_number(config)
            arrays, samples, metrics = self._train(parameters, config)
            return metrics

        metrics = self._guarded(turn)
        return arrays, samples, metrics

    def evaluate(self, parameters: list[npt.NDArray[Any]], config: wire.Config) -> tuple[float, int, wire.Config]:
        """The accuracy of the model as it is; nothing is trained or saved."""

        def turn() -> wire.Config:
            self._take_number(config)
            return self._evaluate(config)

        metrics = self._guarded(turn)
        return 0.0, int(metrics.get("test", 0)), metrics

    def _train(self, parameters: list[npt.NDArray[Any]], config: wire.Config) -> tuple[list[npt.NDArray[Any]], int, wire.Config]:
        clock = Clock()
        round, version, run = int(config["round"]), int(config["version"]), str(config["token"])
        data, method = self._load()
        model, lost = self._model(method, config)
        received = {n: t.to(self.device) for n, t in wire.to_tensors(str(config["names"]), parameters).items()}
        clock.lap("load")
        seed = self.experiment.seed
        torch.manual_seed(derive(seed, "visit", self.client, round))  # for modules that draw, such as a user's dropout
        visit = Visit(self.experiment, self.client, round, torch_generator(seed, "train", self.client, round))
        upload = method.local_update(model.train(), received, data.train, visit)
        clock.lap("train")
        figures: dict[str, int] = {}
        second: dict[str, float] = {}
        if config["evaluate"]:
            figures = self._figures(method, model, data)
            second = {
                name: count_correct(predict, data.test) / len(data.test) for name, predict in method.second_figures(model, received).items()
            }
        clock.lap("evaluate")
        tensors = {name: t.cpu().contiguous() for name, t in tensors_of(model).items()}
        store = self._store(config)
        digest = store.save(round, tensors, version, figures)
        store.write_about(self._about)
        _CACHE.put(run, self.client, round, model)
        clock.lap("save")
        metrics: wire.Config = {
            "round": round,
            "client": self.client,
            "names": wire.names_of(upload.tensors),
            "model": self.experiment.model_of(self.client),
            "model-sha256": digest,
            "lost": lost,
            "loss": next(iter(visit.losses.values()), 0.0),
            "losses": json.dumps(visit.losses),
            "flops": json.dumps(visit.flops),
            "second": json.dumps(second),
            "seconds": json.dumps(clock.laps),
            "worker": str(os.getpid()),
        }
        return wire.to_arrays(upload.tensors), upload.samples, metrics | figures

    def _evaluate(self, config: wire.Config) -> wire.Config:
        data, method = self._load()
        model, _ = self._model(method, config)
        figures = self._figures(method, model, data)
        if config["version"]:
            _CACHE.put(str(config["token"]), self.client, int(config["version"]), model)
        return {**figures}

    def _figures(self, method: Method, model: nn.Module, data: LocalData) -> dict[str, int]:
        model.eval()

        def correct(samples: Samples) -> int:
            return count_correct(lambda images: method.predict(model, images), samples)

        return {
            "validation": len(data.validation),
            "validation-correct": correct(data.validation),
            "test": len(data.test),
            "test-correct": correct(data.test),
        }

    def _load(self) -> tuple[LocalData, Method]:
        site = self._site()
        return site.load(self.device), registry.make(self.experiment, site.classes)

    def _about(self) -> dict[str, Any]:
        """What `pfedlora predict` and `export` need besides the model."""
        site = self._site()
        dataset = site.dataset
        about = {"client": self.client, "classes": site.classes, "class_names": dataset.class_names}
        about |= {"mean": dataset.mean, "std": dataset.std}
        return about | {"experiment": self.experiment.flat(), "versions": versions()}

    def _take_number(self, config: wire.Config) -> None:
        """The client that this instruction is for. Raises UserError when this node is another."""
        self.client = int(config["client"])
        own = int(self.node_config.get("partition-id", self.client))
        if own != self.client:
            raise UserError(f"it was asked as client {self.client}, and its partition-id is {own}")

    def _name(self) -> str:
        """What a node without a partition-id is known by: a random name, kept in its state-path."""
        path = self._state_path() / "name"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, secrets.token_hex(16).encode())
        return path.read_text()

    def _state_path(self) -> Path:
        if "state-path" not in self.node_config:
            raise UserError("the node-config has no state-path, the folder where this node keeps its model")
        return Path(str(self.node_config["state-path"])).expanduser()

    def _site(self) -> Site:
        return Site.find(self.experiment, self.client, self.node_config)

    def _model(self, method: Method, config: wire.Config) -> tuple[nn.Module, bool]:
        """The client's module at the version the server names; and whether that version is lost and it starts anew."""
        run, version = str(config["token"]), int(config["version"])
        cached = _CACHE.take(run, self.client, version)
        if cached is not None:
            return cached, False
        model = method.private_init(self.client, derive(self.experiment.seed, "model", self.client))
        stored = self._store(config).load(version) if version else None
        if stored is not None:
            model.load_state_dict(stored)
        model = model.to(self.device).to(memory_format=torch.channels_last)
        return model, bool(version) and stored is None

    def _store(self, config: wire.Config) -> ClientStore:
        """A simulated client keeps its model in the run's directory, a real node under its own `state-path`."""
        token = str(config["token"])
        if not token.isalnum():
            raise UserError(f"the server names its run {token!r}, which is no folder's name")
        run = RunDirectory(Path(str(config["run"])))
        try:
            here = "state-path" not in self.node_config and run.token == token
        except OSError:
            here = False
        return run.client_store(self.client) if here else ClientStore(self._state_path() / token / str(self.client))

    def _guarded(self, work: Callable[[], wire.Config]) -> wire.Config:
        try:
            return work()
        except Exception as error:
            if not isinstance(error, UserError):
                logger.exception("client %d failed", self.client)
            what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            return {"error": what.strip() or type(error).__name__}
