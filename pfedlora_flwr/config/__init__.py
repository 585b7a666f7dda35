"""A run's keys: read from YAML, texts and Flower's run-config, and checked."""

from pfedlora_flwr.config.checks import check, check_way, unused
from pfedlora_flwr.config.files import find_conf, flatten, read_mapping, read_run
from pfedlora_flwr.config.reading import (
    all_keys,
    completed,
    find_key,
    from_flat,
    load,
    located,
    located_value,
    parse,
    parse_overrides,
    run_config,
)
