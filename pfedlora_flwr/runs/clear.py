"""What a client tells of its visit in the clear, where the run hides its upload: the one list of
it, for messages, for `result.json` and for docs/privacy.md.

Losses and operations are in neither: they are an exact multiple of n_k, which is not told.
Accuracies of further predictors are not, either: these read what was received, so that whoever
chooses that could ask for labels one by one. Nor is a model's hash: whoever guesses the model, or
the one record of it that is missing, would know that the guess is right."""

from __future__ import annotations

from dataclasses import fields

from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.rules import TOLD
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.training.metrics import (
    BESIDE_ACCURACY,
    OF_DECISIONS,
    SENSITIVITY,
    VALIDATION,
    place,
)

FIGURES = frozenset(field.name for field in fields(Counts)) - {"confusion"}
"""What is told of an evaluation."""
_ANYWAY = frozenset(
    {"round", "client", "names", "model", "worker", "node", "lost", "seconds", "withheld"}
)
"""What does not change with the tensors that were received, except for times."""
_BESIDE_UPLOADS = FIGURES | {"counts"} | TOLD
"""What is told with noise, too, where the server reads the upload itself."""


def in_the_clear(e: Experiment, *, scores_told: bool) -> frozenset[str]:
    """The fields of a client's `Report` and of its evaluation. Under masks nothing else is told by
    one client, and scores are whole numbers in the sum.

    scores_told: whether the site's node-config says `scores=told`."""
    if not e.hides_uploads:
        return _ANYWAY | _BESIDE_UPLOADS
    return _ANYWAY | (FIGURES if scores_told else frozenset())


def scores_told(e: Experiment, x: Execution | None = None) -> tuple[str, ...]:
    """What a client measures and tells of an evaluation beside its accuracies: names in a line. A
    run that hides its uploads has no more than the predicted classes make.

    x: what it may ask for, too: a class's sensitivity, and with `scores.by-class` the counts."""
    if e.hides_clients:
        return OF_DECISIONS
    asked = place(x.verdict_score) if x else ""
    names = BESIDE_ACCURACY + ((asked,) if asked.startswith(SENSITIVITY) else ())
    every = (*names, *(VALIDATION + name for name in names))
    return (*every, "confusion") if x and x.scores_by_class else every


def in_words(e: Experiment) -> str:
    """The same as a reader is told it."""
    figures = "accuracies and sample counts of the evaluation parts"
    node = "what a node says of itself when it connects"
    rough = ", from which n_k follows roughly"
    if e.hides_uploads:
        return f"seconds, {node}; where its node-config says scores=told, {figures}{rough}"
    return f"{figures}{'' if e.noises_gradients else rough}, seconds, {node}"
