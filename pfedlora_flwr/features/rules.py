"""The features, in the order in which their rules are checked."""

from __future__ import annotations

from collections.abc import Mapping

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.audit.rules import Audit
from pfedlora_flwr.features.dp.rules import Privacy
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.features.held_out.rules import HeldOutClients
from pfedlora_flwr.features.masks.rules import Masks
from pfedlora_flwr.features.membership.rules import Membership
from pfedlora_flwr.features.sharing.rules import Sharing
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.methods.method import Method

FEATURES: tuple[Feature, ...]
FEATURES = Privacy(), Membership(), Audit(), HeldOutClients(), Masks(), Sharing()
CONTROLS = {key: names for feature in FEATURES for key, names in feature.controls.items()}
PHASES = {name: words for feature in FEATURES for name, words in feature.phases.items()}
GROWING = frozenset[str]().union(*(feature.growing for feature in FEATURES))
TOLD = frozenset[str]().union(*(feature.told for feature in FEATURES))
"""All features' own, as a `Feature` tells of them."""


def check(e: Experiment, x: Execution, method: type[Method]) -> None:
    """Raises UserError for the first feature whose keys do not go together with others."""
    for feature in FEATURES:
        feature.check(e, x, method)
    needing = next(filter(None, (feature.needs_state(e) for feature in FEATURES)), "")
    if e.state_per_client and needing:
        told = "sharing is none, where no state is shared; allowed with it: mean, start"
        raise UserError(f"{needing} and {told}")
    wanted_by = [feature.one_mean(e, x) for feature in FEATURES]
    wanted_by += [f"aggregation={e.aggregation}"] if e.aggregation != "mean" else []
    wanted_by += ["max-weight"] if e.max_weight else []
    if e.control and (names := [*filter(None, wanted_by)]):
        raise UserError(f"sharing is {e.sharing}; allowed with {names[0]}: mean")


def normal(keys: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Those of these keys that make controls, at the values with which a run is none."""
    return {key: next(iter(names)) for key, names in CONTROLS.items() if key in keys}


def unused(name: str, e: Experiment) -> str:
    """Why a feature lets the key `name` change nothing in the run; empty where it may."""
    return next(filter(None, (feature.unused(name, e) for feature in FEATURES)), "")
