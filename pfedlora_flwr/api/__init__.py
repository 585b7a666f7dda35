"""From Python: run, compare, decide, load, adapt, and what they give."""

from pfedlora_flwr.api.calls import compare, decide, load, run
from pfedlora_flwr.api.newcomers import Newcomer, adapt
from pfedlora_flwr.api.results import Comparison, Run

__all__ = ["Comparison", "Newcomer", "Run", "adapt", "compare", "decide", "load", "run"]
