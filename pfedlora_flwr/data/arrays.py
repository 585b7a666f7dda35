"""Arrays of one's own: in an .npz file, or made by a function; and what all arrays that come from outside are checked for."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.images import of_8_bits, warn_of_dark
from pfedlora_flwr.data.source import Arrays, Inputs, Reading
from pfedlora_flwr.errors import UserError, kind, user_code
from pfedlora_flwr.models.registry import load_object

_MOST_CLASSES = 100_000
_TOGETHER = 1_000_000
"""Numbers that are looked at at once."""
_IMAGES = "uint8 [n, height, width] or [n, height, width, 1 or 3]"
_KINDS = f"images {_IMAGES}, series [n, channels, time] or vectors [n, features]"
_FILE = "an npz with `images` or `inputs`, and `labels` [n]"


def npz(text: str, how: Reading) -> Arrays:
    """`npz:FILE`: `images` or `inputs`, `labels` [n], and perhaps `class_names` and `clients` [n]."""
    path = Path(text).expanduser()
    try:
        with np.load(path, allow_pickle=False) as loaded:
            name = "images" if "images" in loaded else "inputs"
            inputs, labels = loaded[name], loaded["labels"]
            names = [str(n) for n in loaded["class_names"]] if "class_names" in loaded else None
            owners = loaded.get("clients")
    except FileNotFoundError:
        raise UserError(f"dataset file {path} does not exist") from None
    except (KeyError, ValueError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
        raise UserError(f"{path}: expected {_FILE}") from None
    if name == "images" and inputs.dtype == np.uint16:
        warn_of_dark(str(path), int(inputs.max(initial=0)))
        inputs = of_8_bits(inputs)
    if name == "images" and (inputs.dtype != np.uint8 or inputs.ndim == 2):
        told = "scale images to 0 … 255 and save them as uint8, or call series and vectors `inputs`"
        raise UserError(
            f"{path}: images is {inputs.dtype} {list(inputs.shape)}; expected {_IMAGES}, uint16, too: {told}"
        )
    return checked(str(path), inputs, labels, names, owners, how, called=name)


def function(text: str, how: Reading) -> Arrays:
    """`package.module:function`: what it returns, called without arguments, or with `data-path` where it takes one.

    (inputs, labels, class names), or a mapping of `inputs`, `labels` and perhaps `class_names` and `clients`.
    """
    made = load_object(text, "dataset")
    with user_code("dataset", text):
        given = made(how.data_path) if inspect.signature(made).parameters else made()
    if isinstance(given, tuple) and len(given) == 3:
        given = dict(zip(("inputs", "labels", "class_names"), given, strict=True))
    if not isinstance(given, Mapping) or not {"inputs", "labels"} <= set(given) <= {
        "inputs",
        "labels",
        "class_names",
        "clients",
    }:
        found = (
            f"a dict of {', '.join(map(str, given))}" if isinstance(given, Mapping) else kind(given)
        )
        wanted = "(inputs, labels, class names), or a dict of inputs, labels and perhaps class_names and clients"
        raise UserError(f"dataset {text!r}: it returned {found}, expected {wanted}")
    with user_code("dataset", text):
        inputs, labels = np.asarray(given["inputs"]), np.asarray(given["labels"])
        names = (
            [str(name) for name in given["class_names"]]
            if given.get("class_names") is not None
            else None
        )
        owners = np.asarray(given["clients"]) if given.get("clients") is not None else None
    return checked(f"dataset {text!r}", inputs, labels, names, owners, how)


def checked(
    where: str,
    inputs: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    names: list[str] | None,
    owners: npt.NDArray[Any] | None,
    how: Reading,
    *,
    called: str = "inputs",
) -> Arrays:
    """The arrays as readers return them. Raises UserError for shapes, types and values that are none of a dataset."""
    found, what = _as_inputs(inputs), f"{called} is {inputs.dtype} {list(inputs.shape)}"
    if found is None or labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu":
        told = f"{what}, labels {labels.dtype} {list(labels.shape)}"
        raise UserError(f"{where}: {told}; expected {_KINDS}, and integers [n]")
    if not len(labels):
        raise UserError(f"{where}: it has no {'images' if found.ndim == 4 else 'samples'}")
    check_labels(where, labels, names, how)
    if owners is not None and (owners.shape != labels.shape or owners.dtype.kind not in "iuU"):
        raise UserError(
            f"{where}: clients is {owners.dtype} {list(owners.shape)}; expected integers or text [n]"
        )
    check_finite(where, found)
    return Arrays(
        found,
        labels.astype(np.int64),
        names or [str(i) for i in range(int(labels.max()) + 1)],
        owners,
    )


def check_labels(
    where: str, labels: npt.NDArray[Any], names: list[str] | None, how: Reading
) -> None:
    """Raises UserError for labels [n], n ≥ 1, that are none of these classes, and where there is but one."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= _MOST_CLASSES:
        raise UserError(
            f"{where}: labels go from {low} to {high}; allowed: 0 to {_MOST_CLASSES - 1}"
        )
    if names is not None and high >= len(names):
        raise UserError(
            f"{where}: labels go up to {high}, and class_names names 0 to {len(names) - 1}"
        )
    if names is not None and len(set(names)) < len(names):
        raise UserError(
            f"{where}: class_names has {next(n for n in names if names.count(n) > 1)!r} twice"
        )
    if len(names or {low, high}) < 2 and not how.one_class:
        raise UserError(f"{where}: all labels are {low}; expected at least two classes")


def check_finite(where: str, inputs: Inputs) -> None:
    """Raises UserError where a float is missing or infinite: its sample, counted from 0."""
    if inputs.dtype == np.uint8:
        return
    together = max(1, _TOGETHER // max(1, inputs[:1].size))
    for start in range(0, len(inputs), together):
        wrong = np.argwhere(~np.isfinite(inputs[start : start + together]))
        if len(wrong):
            place = [start + int(wrong[0][0]), *map(int, wrong[0][1:])]
            raise UserError(
                f"{where}: inputs{place} is {inputs[tuple(place)]}; expected finite numbers"
            )


def _as_inputs(given: npt.NDArray[Any]) -> Inputs | None:
    """As a dataset holds them, bytes in two dimensions being images; None for what is none of the three kinds."""
    if given.dtype == np.uint8 and given.ndim == 3:
        given = given[..., None]
    if 0 in given.shape[1:]:
        return None
    if given.ndim == 4:
        return given if given.dtype == np.uint8 and given.shape[3] in (1, 3) else None
    if given.ndim not in (2, 3) or given.dtype.kind not in "iuf":
        return None
    with np.errstate(
        over="ignore"
    ):  # what is too large for float32 becomes infinite, and is refused
        return given.astype(np.float32)
