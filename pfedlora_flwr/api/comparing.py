"""A comparison from Python: its parts from arguments, before it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from pfedlora_flwr import config
from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.api.running import Conf, first_of, key_of, mapped, plain
from pfedlora_flwr.comparison.plan import Plan
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import Work
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.runs.output import of_comparison

NAMELESS = "comparison"


def placed(
    conf: Conf | None,
    base: Mapping[str, object],
    methods: list[str],
    seeds: list[int],
    output: str | PathLike[str] | None,
) -> tuple[Comparison, Path]:
    """The comparison, and its directory. Raises UserError."""
    if not isinstance(conf, Mapping) and conf is not None:
        file = config.find_conf(fspath(conf))
        return Comparison.load(file, (), base), absolute(output or of_comparison(file))
    content = {"methods": methods} | ({"seeds": seeds} if seeds else {})
    whole = Comparison.of(NAMELESS, content if conf is None else dict(conf), dict(base))
    place = absolute(f"runs/{NAMELESS}")
    return whole, absolute(output or first_of(place, lambda path: _goes_on(path, whole)))


def _goes_on(place: Path, whole: Comparison) -> bool:
    """Whether the comparison can have this directory: nothing is there, or no more than runs of its
    own, so that whoever holds the one that is there still finds it."""
    if not place.exists():
        return True
    try:
        plan = Plan.read(place)
        if plan is None or not {*_folders(plan)} <= {*_folders(whole.plan())}:
            return False
        Work(whole, place).check()
    except UserError:
        return False
    return True


def content_of(conf: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """The mapping of a comparison with names in the place of objects."""
    content = dict(conf)
    if "methods" in content:
        content["methods"] = _axis("method", content["methods"], given)
    if isinstance(of_base := content.get("base"), Mapping):
        content["base"] = mapped(of_base, given)
    if "seeds" in content:
        content["seeds"] = _listed(content["seeds"])
    if isinstance(axes := content.get("axes"), Mapping):
        content["axes"] = {}
        for name, spec in axes.items():
            if (key := key_of(name)) in content["axes"]:
                raise UserError(f"axes: {key} is there twice")
            content["axes"][key] = _axis(name, spec, given)
    return content


def _axis(name: str, spec: Any, given: Given) -> Any:
    """An axis's values with names in the place of objects."""
    if isinstance(spec, Mapping):
        return {
            part: _axis("method" if part == "methods" else name, values, given)
            for part, values in spec.items()
        }
    values = _listed(spec)
    if not isinstance(values, list):
        return values
    return [
        mapped(value, given)
        if isinstance(value, Mapping) and name != "dataset"
        else given.value(key_of(name), value)
        for value in values
    ]


def _listed(values: Any) -> Any:
    """A list of what a tuple, a range or an array holds; anything else as it is."""
    if isinstance(values, list | tuple | range | np.ndarray):
        return [plain(value) for value in values]
    return values


def runs_of(place: Path) -> list[Path]:
    """The directories of all runs that the comparison plans."""
    plan = Plan.read(place)
    return [place / run for run in _folders(plan)] if plan else []


def _folders(plan: Plan) -> list[str]:
    """The folders of a plan's runs."""
    return [
        run
        for cell in plan.cells
        for candidate in cell.candidates
        for run in candidate.runs.values()
    ]
