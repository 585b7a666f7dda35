"""Checks that concern several keys: one function each, and their list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment, option_keys
from pfedlora_flwr.features import rules as features
from pfedlora_flwr.keys import unmet
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.methods.own import check_experiment
from pfedlora_flwr.methods.robust import rule_of
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.models.named import is_library
from pfedlora_flwr.models.spec import ANCHORS, specs_of
from pfedlora_flwr.training.kinds import read_shape
from pfedlora_flwr.training.metrics import OF_DECISIONS


def check(config: RunConfig, method: type[Method]) -> None:
    """Raises UserError for the first section, or of CHECKS, that fails."""
    for section in config.experiment.sections():
        section.check()
    for one in CHECKS:
        one(config.experiment, config.execution, method)


def _method(e: Experiment, x: Execution, method: type[Method]) -> None:
    check_experiment(method, e)
    if method.shares_lora and {*e.train} != {"lora"}:
        raise UserError(
            f"method {e.method} exchanges LoRA, and train is {e.train}: set train=lora, and models"
            " to one with weights"
        )
    if method.one_model and (different := len(set(specs_of(e)))) > 1:
        ways = "setting=homogeneous, or models to one" if e.models is None else "models to one"
        if len({*e.train}) > 1 or len({one.lora_rank for one in specs_of(e)}) > 1:
            ways += ", and train and lora.rank, too"
        raise UserError(
            f"method {e.method} needs the same model at all clients, and theirs are {different};"
            f" set {ways}"
        )
    if e.method_options and ":" not in e.method:
        own = ", ".join(option_keys(e.method, method.Options))
        told = f"method-options is {e.method_options!r}, which is for a package.module:Class method"
        raise UserError(f"{told}; the options of {e.method} are keys: {own or 'it has none'}")


def _sites(e: Experiment, x: Execution, method: type[Method]) -> None:
    sites, clients = x.sites, e.clients
    if sites and (len({*sites}) < len(sites) or len(sites) != clients):
        raise wrong("sites", sites.text, f"as many different names as clients, which is {clients}")


def _scores(e: Experiment, x: Execution, method: type[Method]) -> None:
    few = ("accuracy", *(name.replace("_", "-") for name in OF_DECISIONS))
    if e.hides_clients and x.verdict_score not in few:
        raise UserError(
            f"verdict.score is {x.verdict_score}, which no client reports with {e.hides_clients};"
            f" allowed with it: {', '.join(few)}"
        )
    if e.hides_clients and e.stop.score not in few:
        raise wrong("stop.score", e.stop.score, f"with {e.hides_clients}: {', '.join(few)}")
    if e.hides_clients and x.scores_by_class:
        raise UserError(
            f"scores.by-class is true, and with {e.hides_clients} no client reports its samples by"
            " class"
        )


def _trained(e: Experiment, x: Execution, method: type[Method]) -> None:
    if e.representation != "features" and {"all", "lora"} & {*e.train}:
        given = f"representation={e.representation}"
        raise wrong("train", e.train, "head, for what makes it stays as it is", given)
    if e.representation.startswith(ANCHORS) and e.normalise == "federation":
        raise wrong("normalise", e.normalise, "auto or model, with representation=anchors:FILE")
    if e.representation_norm == "layer" and "lora" in e.train:
        why = "all, head, for peft's files have no place for it"
        raise wrong("train", e.train, why, "representation-norm=layer")


def _inputs(e: Experiment, x: Execution, method: type[Method]) -> None:
    if e.split.folds and e.start_from:
        raise wrong("split.folds", e.split.folds, "auto, with start-from: its rows have their part")
    names = e.data.class_names or ()
    if names and e.classes not in (None, len(names)):
        raise wrong("classes", e.classes, f"auto, or {len(names)}, the number of data.class-names")
    _, shape = read_shape(e.input_shape) if e.input_shape else (None, ())
    if shape and e.image_size and shape[1:] != (e.image_size, e.image_size):
        raise UserError(
            f"image-size is {e.image_size}, and input-shape {e.input_shape}: make them equal, or"
            f" set only one"
        )


def _aggregation(e: Experiment, x: Execution, method: type[Method]) -> None:
    if e.max_weight and issubclass(method, OfSums):
        why = "0, for a client's later sums are differences to its first ones, which count whole"
        raise wrong("max-weight", e.max_weight, why, f"method {e.method}")
    rule = rule_of(e)
    if rule is None:
        return
    told = f"aggregation is {rule.kind}"
    if e.hides_clients:
        raise UserError(f"{told}; allowed with {e.hides_clients}: mean")
    if not method.averages and (rule.kind == "krum" or not method.averages_rows):
        raise UserError(
            f"{told}; allowed with method {e.method}: mean"
            + (", median, trimmed-mean" if method.averages_rows else "")
        )
    if (fewest := e.fewest_sampled) < rule.fewest:
        raise UserError(
            f"aggregation.liars is {rule.liars}; with aggregation={rule.kind} a round needs"
            f" {rule.fewest} clients then, and one has {fewest}"
        )


def check_way(x: Execution) -> None:
    """Raises UserError if a run shall be both continued and replaced."""
    if x.resume and x.overwrite:
        raise UserError(
            "resume and overwrite exclude each other: resume continues the run, overwrite"
            " replaces it"
        )


CHECKS: tuple[Callable[[Experiment, Execution, type[Method]], None], ...] = (
    features.check,
    _method,
    _sites,
    _scores,
    _trained,
    _inputs,
    _aggregation,
    lambda e, x, method: check_way(x),
)
"""In order; each raises UserError for keys that do not go together."""


def unused(options: Iterable[str], config: RunConfig) -> list[str]:
    """Why options that were given change nothing in the run, a line each."""
    whys = ((name, _unused(name, config)) for name in options)
    return [f"{name} is not used: {why}" for name, why in whys if why]


def _unused(name: str, config: RunConfig) -> str:
    """Why a key changes nothing in the run, empty where it may: by what it needs, and by what the
    methods, models and datasets that there are make of it."""
    e, own = config.experiment, config.keys()
    if name not in own:
        return f"it is an option of another method than {e.method}"
    method = registry.find(e.method)
    if name == "lora.head" and not method.shares_lora:
        return f"method {e.method} does not exchange LoRA"
    need = own[name][0].needs
    if need not in ("", name) and (why := unmet(need, own)):
        return why
    if name == "data-path" and config.execution.data_path and not datasets.takes_path(e.dataset):
        return f"dataset {e.dataset!r} takes no files from there"
    if name.startswith(("data.", "split.c")) and name not in datasets.find(e.dataset).columns:
        return f"dataset {e.dataset!r} does not take it"
    if name == "setting" and e.models is not None and e.flat().get("adapter.kind") != "auto":
        return "models names the client models"
    if name == "model-input" and not any(is_library(one.name) for one in specs_of(e)):
        return "no model is of timm or torchvision"
    if name == "representation-width" and e.neck == "auto":
        if not method.one_width:
            return f"neck is auto, and method {e.method} takes each model's own width"
        if len({*specs_of(e)}) == 1:
            return "neck is auto, and all clients have the same model"
    if name.startswith("loss.") and e.adds:
        return f"method {e.method} trains nothing"
    if name == "momentum" and e.optimizer == "adamw":
        return "optimizer is adamw, whose own is 0.9"
    return features.unused(name, e)
