"""From Python: run, compare, decide, load, adapt, and what they give."""

from pfedlora_flwr.api.calls import (
    compare,
    decide,
    list_datasets,
    list_keys,
    list_methods,
    load,
    run,
)
from pfedlora_flwr.api.newcomers import Newcomer, adapt
from pfedlora_flwr.api.results import Comparison, Run
from pfedlora_flwr.errors import UserError
