"""What a run and a comparison have left, for Python."""

from __future__ import annotations

import math
import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from pfedlora_flwr.api import running
from pfedlora_flwr.api.inputs import inputs_of
from pfedlora_flwr.api.objects import Given, check_same
from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.api.reported import Reported
from pfedlora_flwr.api.running import Rows, named, table
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models.given import available
from pfedlora_flwr.ops import evaluate as evaluating
from pfedlora_flwr.ops import export as exporting
from pfedlora_flwr.ops.calibrate import temperature
from pfedlora_flwr.ops.export import WithNormalisation
from pfedlora_flwr.report import decision, measures
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained, clients_of, load_trained

if TYPE_CHECKING:
    from pfedlora_flwr.api.typed_keys import DataKeys, ReadingKeys, ResumeKeys


class Run(Reported):
    """A run on disk. What it reads is read when it is asked for."""

    def __init__(self, path: Path, given: Given | None = None) -> None:
        super().__init__(path, given)
        self._directory = RunDirectory(path)

    def __repr__(self) -> str:
        if self._directory.result() is None:
            return f"<Run {self.path}: no result yet>"
        told = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.4f}"
        return f"<Run {self.path}: {self.status}{told}>"

    @property
    def accuracy(self) -> float:
        """The mean test accuracy over the clients at the round of the best validation, in [0, 1];
        nan where none was evaluated.

        Raises:
            UserError: The run has no result yet.
        """
        told = self.result.get("accuracy", {})
        return float(told["at_best_validation"]) if told.get("evaluated") else math.nan

    def gain(self, other: Run | str | PathLike[str]) -> float:
        """This run's accuracy minus that of another with the same clients, in [−1, 1]: of
        `standalone`, or of the same method with `sharing=none`. A claim needs several seeds.

        Raises:
            UserError: One of them is not completed, or had another seed or other data.
        """
        theirs = other if isinstance(other, Run) else Run(absolute(other))
        with self._study() as ours, theirs._study() as beside:
            a, b = ({r.experiment.seed: r for r in study.runs} for study in (ours, beside))
        if (found := measures.paired(a, b)) is None:
            raise UserError(f"{self.path} and {theirs.path} had other seeds or data: no gain")
        return found.mean

    @property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`: status, accuracies in [0, 1], communication in parameters
        and bytes, operations, seconds. docs/output.md has every field.

        Raises:
            UserError: The run has no result yet: it goes on, or was killed.
        """
        found = self._directory.result()
        if found is None:
            raise UserError(f"{self.path} has no result.json: the run goes on, or was killed")
        return cast("dict[str, Any]", found)

    @property
    def status(self) -> str:
        """`completed`, `stopped`, `failed`, `diverged`, or `unfinished`, also if it was killed."""
        found = self._directory.result()
        return found["status"] if found else "unfinished"

    @property
    def config(self) -> dict[str, Any]:
        """Every key of the run with its value, by the names of docs/keys.md."""
        return self._directory.saved_keys()

    def rounds(self) -> Rows:
        """The rounds, 0 being the initial models.

        Returns:
            A pandas DataFrame, a row a round, where pandas is installed; else a list of dicts.
            Accuracies are means over all clients, in [0, 1]. docs/output.md has every field.
        """
        return table(self._directory.rounds())

    def clients(self) -> Rows:
        """The clients' visits, those that failed included.

        Returns:
            A pandas DataFrame, a row a visit, where pandas is installed; else a list of dicts.
            `accuracy` is that on the client's own test part after the visit, in [0, 1].
        """
        return table(self._directory.visits())

    def class_names(self, client: int) -> list[str]:
        """The names of the classes, in the order of a model's outputs.

        Args:
            client: The client's number, from 0.

        Raises:
            UserError: The client has no model here.
        """
        with available(self._given.objects), as_it_was():
            return list(self._trained(client).class_names)

    def model(self, client: int) -> nn.Module:
        """A client's personalised model with its normalisation, in evaluation mode on the CPU.

        Args:
            client: The client's number, from 0.

        Returns:
            A module: inputs → logits, float32 [n, classes]. It takes images as float32
            [n, channels, height, width] in [0, 1]; series [n, channels, time] and vectors
            [n, features] as float64 in the units of the training data.

        Raises:
            UserError: The client has no model here, or the run was given objects that were not
                given again.
        """
        with available(self._given.objects), as_it_was():
            trained = self._trained(client)
            return WithNormalisation(trained.method.predictor(trained.module), trained).eval()

    def predict(
        self, client: int, inputs: Any, *, calibrated: bool = False, **keys: Unpack[ReadingKeys]
    ) -> npt.NDArray[np.float32]:
        """What a client's model says of inputs.

        Args:
            client: The client's number, from 0.
            inputs: An array as a dataset has it: images, uint8 [n, height, width, 1 or 3] of the
                size that the model takes; series [n, channels, time]; vectors [n, features]; for a
                model of texts a list of them. Or the path, or a list of paths (`pathlib.Path` for
                files of texts), of what `pfedlora predict` takes: image files of any size, tables,
                arrays, folders.
            calibrated: Divide outputs by a temperature, by the client's own validation part.
            keys: `data_sep` and `data_decimal` of tables, if not as in the run.

        Returns:
            Probabilities, float32 [n, classes], in the order of `class_names`.

        Raises:
            UserError: The model takes other inputs, or a file cannot be read.
        """
        with available(self._given.objects), as_it_was():
            trained = self._trained(client)
            options = running.keys_of(named(**keys), Given())
            logits = trained.logits(inputs_of(trained, inputs, options))
            if not bool(logits.isfinite().all()):
                raise UserError(
                    f"the model of client {client} gives values that are not finite: its training"
                    " diverged"
                )
            t = temperature(trained, warnings.warn) if calibrated else 1.0
            return cast("npt.NDArray[np.float32]", (logits / t).softmax(1).numpy())

    def evaluate(
        self, client: int | None = None, data: Any = None, **keys: Unpack[DataKeys]
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """A client's model on labelled samples.

        Args:
            client: The client's number, from 0. None: all clients that have been trained.
            data: A dataset, as the key of that name takes it (`folder:DIR`, `csv:FILE`), or
                (inputs, labels) as arrays. None: the client's own test part, as the run counted it.
            keys: `data_…` of the dataset if not as in the run, and `data_path`, where its files
                are.

        Returns:
            `accuracy`, `balanced_accuracy` and `macro_f1` in [0, 1]; `samples`; `classes` with the
            recall of each; `confusion`, the number of samples by true class (rows) and predicted
            class (columns), in the order of `class_names`. `seen`: whether the data holds inputs
            that the run's clients were trained on, None where the run's own is not here any more;
            `by_number` and `by_place`: whether classes and columns were matched by these, since
            one side has no names. Of all clients a list of these.

        Raises:
            UserError: The data is missing, or of other inputs or classes than the model's.
        """
        given = Given()
        name = None if data is None else str(given.value("dataset", data))
        with available(self._given.objects | given.objects), as_it_was():
            asked = clients_of(self.path)[0] if client is None else [client]
            models = (self._trained(k) for k in asked)
            options = running.keys_of(named(**keys), Given())
            found = evaluating.evaluate(models, name, options, confusions=True)
        rows = [cast("dict[str, Any]", evaluation) for evaluation in found]
        return rows if client is None else rows[0]

    def export(
        self,
        client: int,
        output: str | PathLike[str] | None = None,
        *,
        format: str = "safetensors",
        overwrite: bool = False,
    ) -> Path:
        """Write a client's model as one file with a model card, checked against the model itself.

        Args:
            client: The client's number, from 0.
            output: The file, otherwise client-K with the format's suffix in the current folder.
            format: `safetensors` (weights), `torch-export` or `onnx` (whole programs), or `peft`
                (a folder with LoRA and the head alone).
            overwrite: Whether a file that is there is replaced.

        Returns:
            The file's path. The card lies beside it, with `.md` behind its name.

        Raises:
            UserError: The file is there, a library is missing, or the model cannot be exported.
        """
        target = absolute(output or f"client-{client}{exporting.SUFFIXES.get(format, '')}")
        with available(self._given.objects), as_it_was():
            exporting.export(self._trained(client), format, target, overwrite=overwrite)
        return target

    def export_shared(
        self, output: str | PathLike[str] | None = None, *, overwrite: bool = False
    ) -> Path:
        """Write what a client receives that was not in the run, for `adapt` on another machine.

        Args:
            output: The file, otherwise shared.safetensors in the current folder.
            overwrite: Whether a file that is there is replaced.

        Raises:
            UserError: The file is there, or the run shares nothing.
        """
        target = None if output is None else Path(output)
        with available(self._given.objects), as_it_was():
            return exporting.export_shared(self.path, target, overwrite=overwrite)

    def resume(
        self,
        rounds: int | None = None,
        *,
        engine: str = "local",
        progress: bool = True,
        **keys: Unpack[ResumeKeys],
    ) -> Run:
        """Go on with a run that was stopped or killed, or that is to have more rounds: the bits of
        one that was never interrupted.

        Args:
            rounds: The number of rounds that it ends at; None: as it was.
            engine: `local` or `flower`.
            progress: Whether a line is printed for each round.
            keys: Keys that a resumed run may change, and objects that it was given, again.

        Returns:
            This run.

        Raises:
            UserError: The run cannot go on, or a key that can change its result is another.
            KeyboardInterrupt: Ctrl-C; it can be resumed again.
        """
        options = running.keys_of(named(**keys), added := Given())
        check_same(self.config, options)
        options |= {"output": str(self.path), "resume": True}
        options |= {} if rounds is None else {"rounds": rounds}
        given = self._given.joined(added)
        running.trained(None, {}, options, given, engine=engine, progress=progress)
        self._given = given
        return self

    def _trained(self, client: int) -> Trained:
        return load_trained(self.path, client)


class Comparison(Reported):
    """A comparison on disk: methods × scenarios × seeds."""

    def __repr__(self) -> str:
        with self._study() as study:
            pass
        missing = sum(len(outcome.missing) for outcome in study.outcomes)
        left = f", {missing} missing" if missing else ""
        return f"<Comparison {self.path}: {len(study.runs)} runs completed{left}>"

    def runs(self) -> list[Run]:
        """Its completed runs, scenario by scenario; of tuned keys those that were chosen.

        Raises:
            UserError: The comparison cannot be read.
        """
        with self._study() as study:
            return [Run(run.path, self._given) for run in study.runs]

    @property
    def accuracy(self) -> dict[str, float]:
        """By method the mean over seeds of the test accuracy at best validation, in [0, 1].

        Raises:
            UserError: It has several scenarios; `table` has a row for each.
        """
        with self._study() as study:
            [scenario, *more] = decision.compared(study) or study.scenarios
            if more:
                raise UserError(f"{self.path} has several scenarios: table() has a row for each")
            return {
                outcome.method: found.mean
                for outcome in study.ordered(scenario)
                if (found := measures.accuracy(outcome.runs))
            }

    def gain(self) -> Rows:
        """What each method gains beside training alone, as the verdict judges it.

        Returns:
            A row for each method in each scenario: the scenario's keys, `method`, `beside` (what it
            is compared with), `gain` in the verdict's score, in [−1, 1], its interval from `low` to
            `high` (nan below three seeds) with Holm's correction, and `verdict`.

        Raises:
            UserError: The comparison cannot be read.
        """
        with self._study() as study:
            return table(
                {
                    **found.scenario,
                    "method": found.ours.method,
                    "beside": found.reference,
                    "gain": found.by.mean,
                    "low": found.by.mean - half,
                    "high": found.by.mean + half,
                    "verdict": found.verdict.ending if found.verdict else "too few seeds",
                }
                for found in decision.findings(study)
                for half in [found.verdict.half if found.verdict else math.nan]
            )

    def table(self) -> Rows:
        """A row for each method in each scenario that has completed runs.

        Returns:
            A pandas DataFrame where pandas is installed, else a list of dicts: the scenario's keys,
            `method`, `seeds` (their number), `accuracy` (mean test accuracy at best validation, in
            [0, 1], over seeds) and `accuracy_half` (half the width of its 95 % t-interval; nan
            for fewer than three seeds), `final`, `bytes` sent up and down, and
            `minus_standalone` with its half, paired by seed, where Standalone was compared.

        Raises:
            UserError: The comparison cannot be read.
        """
        rows = []
        with self._study() as study:
            for outcome in study.in_order():
                is_alone = outcome.method == "standalone"
                alone = None if is_alone else study.alone(outcome.scenario)
                difference = measures.paired(outcome.runs, alone.runs) if alone else None
                sent = (run.result["communication"] for run in outcome.runs.values())
                values = {
                    "accuracy": measures.accuracy(outcome.runs),
                    "final": measures.over_seeds(outcome, "accuracy/final"),
                    "bytes": measures.estimate([c["bytes_up"] + c["bytes_down"] for c in sent]),
                    "minus_standalone": difference,
                }
                row: dict[str, Any] = {**outcome.scenario, "method": outcome.method}
                row["seeds"] = len(outcome.runs)
                for name, value in values.items():
                    row[name] = value.mean if value else math.nan
                    if name in ("accuracy", "minus_standalone"):
                        half = value.half if value else None
                        row[f"{name}_half"] = math.nan if half is None else half
                rows.append(row)
        return table(rows)
