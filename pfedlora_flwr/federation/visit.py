"""A client's visit as a computation, without messages, disk or clock. The client app, a plain
federation, benchmarks and scripts all call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfedlora_flwr.data.local import LocalData
from pfedlora_flwr.errors import UserError, kind, short, user_code
from pfedlora_flwr.methods.method import (
    PREDICTORS,
    Method,
    Tensors,
    Upload,
    is_predictor,
)
from pfedlora_flwr.models.pretrained import frozen_encoder, with_outputs
from pfedlora_flwr.models.registry import any_batch_norm, load_object
from pfedlora_flwr.rng import derive, seeded, torch_generator
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.clear import scores_told
from pfedlora_flwr.training.loop import (
    Noise,
    Samples,
    Visit,
    count_correct,
    mixed_precision,
)
from pfedlora_flwr.training.loss import Loss, balanced, trained_by, weighted
from pfedlora_flwr.training.metrics import VALIDATION, is_score, measured, predictions


def visit(
    method: Method,
    model: Any,
    received: Tensors,
    data: Samples,
    client: int,
    round: int,
    noise: Noise | None = None,
    validation: Samples | None = None,
) -> tuple[Upload, Visit]:
    """Trains `model`, in place, on `data` by the method.

    Args:
        model: what the client keeps, where `data` is.
        received: the method's download for this client, where `data` is.
        data: the client's training samples.
        client: its number; with `round` and the Experiment's seed it decides every draw.
        noise: of this visit with `dp.level=record`; without, what is sent is what was received.
        validation: the client's validation part, where what is sent may tell of it.

    Returns:
        What the client sends, and the visit with its losses and operations by phase.

    Raises:
        UserCodeError: the method's own code raised, or returned no Upload.

    Within it the global generators are seeded for what draws from them, such as a user's dropout.
    """
    seed = method.experiment.seed
    data = with_encoded(method, model, data)
    counts = Visit(
        method.experiment,
        client,
        round,
        torch_generator(seed, "train", client, round),
        batches_of_one=not any_batch_norm(method.model_names, method.task, method.shares_small),
        noise=noise,
        validation=validation,
    )
    with (
        trained_by(_loss(method, data)),
        user_code("method", method.experiment.method),
        seeded(derive(seed, "visit", client, round)),
    ):
        upload = method.local_update(model.train(), received, data, counts)
        _check(upload)
    return upload, counts


def checked(name: str, function: Loss) -> Loss:
    """A user's loss. Raises UserCodeError, when it is called, for what it raises, and UserError for
    what is no scalar."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        with user_code("loss", name):
            found = function(logits, labels)
        if not isinstance(found, Tensor) or found.shape:
            what = f"a tensor {[*found.shape]}" if isinstance(found, Tensor) else kind(found)
            raise UserError(f"loss {name!r} returned {what}, expected a scalar tensor")
        return found

    return loss


def _loss(method: Method, data: Samples) -> Loss | None:
    e = method.experiment
    if e.loss.function:
        return checked(e.loss.function, load_object(e.loss.function, "loss"))
    if (own := e.loss.class_weights) is not None:
        return weighted(torch.tensor([*own], device=data.labels.device))
    return balanced(data.labels, method.classes) if e.loss.weights == "balanced" else None


def _check(upload: object) -> None:
    """Raises TypeError for what a user's `local_update` should not return."""
    if not isinstance(upload, Upload):
        raise TypeError(f"local_update returned {kind(upload)}, expected an Upload")
    wrong = [name for name, t in upload.tensors.items() if not isinstance(t, Tensor)]
    if wrong:
        found = kind(upload.tensors[wrong[0]])
        raise TypeError(f"local_update returned an Upload whose {wrong[0]!r} is {found}, no tensor")
    if type(upload.samples) is not int:
        raise TypeError(
            f"local_update returned an Upload of {upload.samples!r} samples, expected an integer"
        )


def logits(method: Method, model: Any, inputs: Tensor) -> Tensor:
    """The personalised model's logits, [B, classes], in the mode in which it is."""
    with user_code("method", method.experiment.method):
        return method.predictor(model)(inputs)


def evaluate(
    method: Method,
    model: Any,
    data: LocalData,
    tell: Callable[[Tensor], None] | None = None,
    wanted: Sequence[str] | None = None,
    classes: Sequence[str] = (),
) -> Counts:
    """The personalised model on the client's validation and test parts. The model goes into
    evaluation mode.

    tell: is handed which test samples it has right, bool [n]. wanted: of `scores_told`; None: what
    a client tells that is asked for no more. classes: their names."""
    model.eval()
    with user_code("method", method.experiment.method):
        predict = method.predictor(model)
        validation, test = (
            predictions(predict, with_encoded(method, model, part), method.classes)
            for part in (data.validation, data.test)
        )
    if tell:
        tell(test.right)
    wanted = scores_told(method.experiment) if wanted is None else wanted
    found = {
        name: (
            measured(name.removeprefix(VALIDATION), validation, classes)
            if name.startswith(VALIDATION)
            else measured(name, test, classes)
        )
        for name in wanted
        if is_score(name)
    }
    return Counts(
        validation_correct=int(validation.right.sum()),
        validation=len(data.validation),
        test_correct=int(test.right.sum()),
        test=len(data.test),
        scores={name: value for name, value in found.items() if value is not None},
        confusion=test.confusion.tolist() if "confusion" in wanted else None,
    )


def other_accuracies(
    method: Method, model: Any, received: Tensors, test: Samples
) -> dict[str, float]:
    """The test accuracy, in [0, 1], of the method's further predictors by name. Raises
    UserCodeError for a name that the server would refuse."""
    test = with_encoded(method, model, test)
    with user_code("method", method.experiment.method):
        predictors = method.other_predictors(model, received)
        if wrong := [name for name in predictors if not is_predictor(name)]:
            raise ValueError(
                f"other_predictors has the name {short(wrong[0], 60)}; allowed: {PREDICTORS}"
            )
        return {
            name: count_correct(predict, test) / len(test) for name, predict in predictors.items()
        }


def with_encoded(method: Method, model: Any, samples: Samples) -> Samples:
    """The samples with the outputs of the model's encoder, where that is wholly frozen and images
    are not augmented: it then runs once, in the same batches and in the key `precision`, whoever
    calls."""
    encoder = frozen_encoder(model) if isinstance(model, nn.Module) else None
    if encoder is None or method.experiment.augment or not len(samples):
        return samples
    with mixed_precision(method.experiment.precision, samples.labels.device):
        return with_outputs(samples, encoder)
