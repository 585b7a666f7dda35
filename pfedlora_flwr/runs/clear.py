"""What a client tells of its visit in the clear, where the run hides its upload: the one list of
it, for messages, for `result.json` and for docs/privacy.md.

Losses and operations are in neither: they are an exact multiple of n_k, which is not told.
Accuracies of further predictors are not, either: these read what was received, so that whoever
chooses that could ask for labels one by one."""

from __future__ import annotations

from dataclasses import fields

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.checkpoint import Counts

FIGURES = frozenset(field.name for field in fields(Counts))
"""What is told of an evaluation."""
_ANYWAY = frozenset({"round", "client", "names", "model", "worker", "node", "lost", "seconds"})
"""What does not change with the tensors that were received, except for times."""
_BESIDE_UPLOADS = FIGURES | {"counts", "model_sha256", "epsilon"}
"""What is told with `dp`, too, where the server reads the upload itself."""


def in_the_clear(e: Experiment, *, scores_told: bool) -> frozenset[str]:
    """The fields of a client's `Report` and of its evaluation. Under masks nothing else is told by
    one client, and scores are whole numbers in the sum.

    scores_told: whether the site's node-config says `scores=told`."""
    if not e.secagg.enabled:
        return _ANYWAY | _BESIDE_UPLOADS
    return _ANYWAY | (FIGURES if scores_told else frozenset())


def in_words(e: Experiment) -> str:
    """The same as a reader is told it."""
    figures, node = (
        "accuracies and sample counts of the evaluation parts",
        "what a node says of itself when it connects",
    )
    rough = ", from which n_k follows roughly"
    if e.secagg.enabled:
        return f"seconds, {node}; where its node-config says scores=told, {figures}{rough}"
    return f"{figures}{'' if e.dp.of_records else rough}, seconds, the hash of the model, {node}"
