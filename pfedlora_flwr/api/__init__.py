"""From Python: run, compare, load, and what they give."""

from pfedlora_flwr.api.calls import compare, load, run
from pfedlora_flwr.api.results import Comparison, Run

__all__ = ["Comparison", "Run", "compare", "load", "run"]
