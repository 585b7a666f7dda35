"""The contract of a feature's `record.py`: what it keeps of a run on the server's disk."""

from __future__ import annotations

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.layout import RunFiles


class Record:
    """Each hook says and does nothing unless a feature defines it. All raise UserError for a file
    that is damaged."""

    outlives: str = ""
    """The file of `server` that outlives the run that wrote it; empty: none."""

    def outliving(self, run: RunFiles, e: Experiment | None) -> bytes | None:
        """What is to stay of it when another run takes the directory; None: nothing. e: of the run
        there; None where it cannot be read."""
        return None

    def carry(self, old: RunFiles, was: Experiment, run: RunFiles, e: Experiment) -> None:
        """Adds what it has of `old`, from whose models `run` begins, to what it has of that.

        was, e: what is trained in them."""

    def check_whole(self, run: RunFiles, e: Experiment) -> None:
        """Raises UserError unless it has all that the run's lines tell."""

    def check_extension(self, run: RunFiles, saved: Experiment, wanted: Experiment) -> None:
        """Raises UserError if the run, of `saved`, cannot have the rounds of `wanted`."""

    def is_void(self, run: RunFiles) -> bool:
        """Whether what is there is of replaced runs alone."""
        return True
