"""Checks that concern several keys: one function each, and their list."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment, at_least, option_keys
from pfedlora_flwr.keys import said, unmet
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.methods.own import check_experiment
from pfedlora_flwr.methods.robust import rule_of
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.models.named import is_library
from pfedlora_flwr.models.spec import ANCHORS, specs_of
from pfedlora_flwr.training.kinds import read_shape
from pfedlora_flwr.training.metrics import OF_DECISIONS

_MOST_MASKED = 1023
"""Clients whose masked updates can be summed: 1024 of the 2^22 levels would leave the 2^32."""


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


def _min_clients(e: Experiment, x: Execution, method: type[Method]) -> None:
    wanted = x.min_clients
    if wanted is not None and wanted > e.clients - len(e.clients_left):
        raise UserError(
            f"min-clients is {wanted}; allowed: auto, or at most clients, which is {e.clients}"
            + (f", of which {len(e.clients_left)} leave or have left" if e.clients_left else "")
        )


def _sites(e: Experiment, x: Execution, method: type[Method]) -> None:
    sites, clients = x.sites, e.clients
    if sites and (len({*sites}) < len(sites) or len(sites) != clients):
        raise UserError(
            f"sites is {sites.text!r}; allowed: as many different names as clients, which is"
            f" {clients}"
        )


def _joined(e: Experiment, x: Execution, method: type[Method]) -> None:
    told = f"clients-joined is {e.clients_joined!r}"
    if not e.clients_joined:
        return
    numbers = [(-1, 0), *e.clients_joined, (e.rounds, e.clients)]
    if not all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(numbers)):
        raise UserError(
            f"{told}; allowed: R:N with rising R below rounds, which is {e.rounds}, and rising N"
            f" below clients, which is {e.clients}"
        )
    if e.fixes_clients:
        raise UserError(f"{told}; with {e.fixes_clients} no client can join")


def _left(e: Experiment, x: Execution, method: type[Method]) -> None:
    told = f"clients-left is {e.clients_left!r}"
    if not e.clients_left:
        return
    if any(isinstance(client, str) for _, client in e.clients_left):
        if not x.resume:
            raise UserError(
                f"{told}; allowed: R:K or K, numbers; with resume=true sites' names, too"
            )
        return  # their numbers are the run's to tell
    lasts, clients = zip(*e.clients_left, strict=True)
    if len({*clients}) < len(clients) or not {*clients} < {*range(e.clients)}:
        raise UserError(
            f"{told}; allowed: each of the clients 0 to {e.clients - 1} once, and not all of them"
        )
    if max(lasts) >= e.rounds:
        raise UserError(
            f"{told}; allowed: R below rounds, which is {e.rounds}; {max(lasts)} is not"
        )
    if empty := [last + 1 for last in [0, *lasts] if not e.clients_in(max(1, last + 1))]:
        raise UserError(f"{told}; no client would be left in round {empty[0]}")
    if e.fixes_clients:
        raise UserError(f"{told}; with {e.fixes_clients} no client can leave")


def _held_out(e: Experiment, x: Execution, method: type[Method]) -> None:
    if not e.held_out.clients:
        return
    if e.held_out.clients >= e.clients:
        raise UserError(
            f"clients-held-out is {e.held_out.clients}; allowed: at most {e.clients - 1}, one fewer"
            " than clients"
        )
    if e.state_per_client:
        raise UserError(
            f"clients-held-out is {e.held_out.clients} and sharing is none, where no state is"
            " shared; allowed with it: mean, start"
        )
    if e.secagg.enabled:
        raise UserError(
            f"clients-held-out is {e.held_out.clients} and secagg.enabled, too: what a client"
            " reports of its adaptation would show its number of samples; use `pfedlora adapt`"
        )


def _scores(e: Experiment, x: Execution, method: type[Method]) -> None:
    few = ("accuracy", *(name.replace("_", "-") for name in OF_DECISIONS))
    if e.hides_clients and x.verdict_score not in few:
        raise UserError(
            f"verdict.score is {x.verdict_score}, which no client reports with {e.hides_clients};"
            f" allowed with it: {', '.join(few)}"
        )
    if e.hides_clients and e.stop.score not in few:
        raise wrong("stop.score", e.stop.score, f"with {e.hides_clients}: {', '.join(few)}")
    if e.stop.patience and e.held_out.clients:
        raise UserError(
            "stop.patience is set and clients-held-out, too, whose adaptation is after the last"
            " planned round: use `pfedlora adapt`"
        )
    if e.hides_clients and x.scores_by_class:
        raise UserError(
            f"scores.by-class is true, and with {e.hides_clients} no client reports its samples by"
            " class"
        )


def _trained(e: Experiment, x: Execution, method: type[Method]) -> None:
    if e.noises_gradients and (changed := e.loss.changed()):
        what = f"loss.{next(iter(changed))}"
        raise UserError(f"{what} is set, and noise of records is only for the mean cross entropy")
    if e.representation != "features" and {"all", "lora"} & {*e.train}:
        raise UserError(
            f"train is {e.train!r}; allowed with representation={e.representation}: head, for what"
            " makes it stays as it is"
        )
    if e.representation.startswith(ANCHORS) and e.normalise == "federation":
        raise wrong("normalise", e.normalise, "auto or model, with representation=anchors:FILE")
    if e.representation_norm == "layer" and "lora" in e.train:
        raise UserError(
            f"train is {e.train!r}; allowed with representation-norm=layer: all, head, for peft's"
            " files have no place for it"
        )


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


def _control(e: Experiment, x: Execution, method: type[Method]) -> None:
    """What works on the one mean of all uploads of a round."""
    wanted_by = {
        "audit.uploads": x.audit_uploads,
        "secagg.enabled": e.secagg.enabled,
        "dp": e.noises_rounds,
        f"aggregation={e.aggregation}": e.aggregation != "mean",
        "max-weight": e.max_weight > 0,
    }
    if e.sharing != "mean" and (names := [name for name, used in wanted_by.items() if used]):
        raise UserError(f"sharing is {e.sharing}; allowed with {names[0]}: mean")


def _aggregation(e: Experiment, x: Execution, method: type[Method]) -> None:
    if e.max_weight and e.hides_clients and not e.noises_gradients:
        raise UserError(
            f"max-weight is {e.max_weight:g}; allowed with {e.hides_clients}: 0, for "
            + (
                "the server sees no single claim; secagg.max-samples bounds them"
                if e.secagg.enabled
                else "every update weighs the same"
            )
        )
    if e.max_weight and issubclass(method, OfSums):
        raise UserError(
            f"max-weight is {e.max_weight:g}; allowed with method {e.method}: 0, for a client's"
            " later sums are differences to its first ones, which count whole"
        )
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
    changes = {1, *(last + 1 for last, _ in e.clients_left if last >= 0)} if e.clients_left else {1}
    fewest = min(map(e.sampled_in, changes))
    if fewest < rule.fewest:
        raise UserError(
            f"aggregation.liars is {rule.liars}; with aggregation={rule.kind} a round needs"
            f" {rule.fewest} clients then, and one has {fewest}"
        )


def _kept_uploads(e: Experiment, x: Execution, method: type[Method]) -> None:
    if x.audit_uploads and e.secagg.enabled:
        raise UserError(
            "audit.uploads is true and secagg.enabled, too: under masks no upload can be kept;"
            " audit such a run from its sum"
        )


def _averaging() -> str:
    found = ((name, registry.find(name)) for name in registry.NAMES)
    return ", ".join(name for name, one in found if one.averages or one.adds)


def _secure_aggregation(e: Experiment, x: Execution, method: type[Method]) -> None:
    shares = x.secagg_shares
    if not e.secagg.enabled:
        return
    if not method.averages and not method.adds:
        raise UserError(
            f"method {e.method} does not take a mean of uploads; secagg.enabled needs one that"
            f" does: {_averaging()}"
        )
    if not 3 <= e.sampled <= _MOST_MASKED:
        told = f"clients × participation gives {e.sampled}"
        raise UserError(f"secagg.enabled needs 3 to {_MOST_MASKED} sampled clients, {told}")
    if shares is not None and shares % 2 == 0:
        raise UserError(f"secagg.shares is {shares}; allowed: auto, or an odd integer ≥ 5")
    changing, least = getattr(e.options, "changing", None), x.secagg_threshold
    if changing is not None and not at_least(least, e.sampled) <= changing <= e.sampled:
        raise UserError(
            f"sums.changing is {changing}; allowed with secagg.enabled: auto, or"
            f" {at_least(least, e.sampled)}, by secagg.threshold, to {e.sampled}"
        )
    if shares is not None and shares > e.sampled:
        raise wrong("secagg.shares", shares, f"at most the {e.sampled} sampled clients")


def _differential_privacy(e: Experiment, x: Execution, method: type[Method]) -> None:
    if not e.dp.of_users:
        return
    if not method.averages and not method.adds:
        raise UserError(
            f"method {e.method} does not take a mean of uploads; dp needs one that does:"
            f" {_averaging()}"
        )
    if e.noises_sums:
        return
    if e.dp.delta * e.clients >= 1:
        raise wrong("dp.delta", e.dp.delta, f"below 1/clients, which is {1 / e.clients:g}")
    if e.secagg.enabled and e.dp.norm > e.secagg.clip:
        raise UserError(
            f"dp.clip is {e.dp.norm:g}; allowed with secagg.enabled: at most secagg.clip, which is"
            f" {e.secagg.clip:g}"
        )


def _privacy_of_records(e: Experiment, x: Execution, method: type[Method]) -> None:
    if not e.noises_gradients:
        return
    # one that inherits it may send more
    if "record_epochs" not in vars(method):
        raise UserError(
            f"method {e.method} does not say that what it sends reveals a record by noised"
            " gradients only; allowed with dp.level=record: pfedlora_plus"
        )
    rules = {
        "train": (
            {*e.train} == {"head"},
            "head, because an encoder that is trained on a record changes every record's gradient",
        ),
        "neck": (e.neck == "auto", "auto, because a neck is trained"),
        "normalise": (
            e.normalise == "model" or e.data.text_column is not None,
            "model, because the mean and deviation of the federation's data are functions of every"
            " record",
        ),
        "augment": (not e.augment, "false"),
        "secagg.enabled": (
            not e.secagg.enabled,
            "false, because a round that is repeated has fresh noise, and a client masks one update"
            " a round",
        ),
    }
    for name, (fine, allowed) in rules.items():
        if not fine:
            raise UserError(f"{said(*e.keys()[name])}; allowed with dp.level=record: {allowed}")


def check_way(x: Execution) -> None:
    """Raises UserError if a run shall be both continued and replaced."""
    if x.resume and x.overwrite:
        raise UserError(
            "resume and overwrite exclude each other: resume continues the run, overwrite"
            " replaces it"
        )


CHECKS: tuple[Callable[[Experiment, Execution, type[Method]], None], ...] = (
    _differential_privacy,
    _privacy_of_records,
    _method,
    _left,
    _min_clients,
    _sites,
    _joined,
    _held_out,
    _scores,
    _trained,
    _inputs,
    _control,
    _aggregation,
    _kept_uploads,
    _secure_aggregation,
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
    if name == "audit.uploads" and e.method == "standalone":
        return "method standalone sends nothing"
    if name.startswith("dp.") and not e.dp.enabled:
        return "none of dp.clip, dp.noise and dp.epsilon is set"
    if name == "dp.trained-down" and not _consents(e):
        return "noise is on no two matrices of an adapter here"
    if name == "evaluate-initial" and e.evaluate_initial and e.secagg.enabled:
        return "under masks clients are evaluated only at visits"
    if name == "secagg.max-samples" and e.dp.enabled:
        return "with dp every update weighs the same"
    if name in ("clip-norm-factor", "max-samples") and e.dp.of_users:
        return "with dp all updates are clipped and weigh the same"
    if name in ("clip-norm-factor", "max-samples") and e.secagg.enabled:
        return "with secagg.enabled the server sees no single update"
    return ""


def _consents(e: Experiment) -> bool:
    """Whether the method would be refused without `dp.trained-down`."""
    try:
        registry.find(e.method).check_experiment(e.replace(**{"dp.trained_down": False}))
    except UserError:
        return True
    return False
