"""The Experiment: one object from YAML, from flat keys and from overrides; wrong input is one clear
line."""

from __future__ import annotations

import pickle
import tomllib
from pathlib import Path

import pytest

from pfedlora_flwr import config
from pfedlora_flwr.config import all_keys, find_key, from_flat, run_config
from pfedlora_flwr.config.files import scalar
from scripts import methods
from scripts.declare import OF_APP, ROOT, declared


def test_yaml_overrides_and_run_config_give_the_same_object(tmp_path: Path) -> None:
    conf = tmp_path / "a.yaml"
    conf.write_text(
        "clients: 5\nlr: 1e-2\nadapter: {hidden-dim: 40, init: lora}\npartition.kind: iid\nactors:"
        " auto\n"
    )
    from_yaml = config.load(conf, ["mu=0.75", "rounds=3"])
    flat = {
        "clients": 5,
        "lr": 0.01,
        "adapter.hidden-dim": 40,
        "adapter.init": "lora",
        "partition.kind": "iid",
        "mu": 0.75,
        "rounds": 3,
    }
    assert from_yaml == run_config(flat)
    assert run_config(from_yaml.flat()) == from_yaml
    assert from_yaml.experiment.options.adapter_hidden_dim == 40
    assert from_yaml.execution.actors is None


def test_pyproject_declares_every_key_with_its_default() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat: dict[str, object] = {}
    for name, value in written.items():
        flat |= (
            {f"{name}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    assert flat == {name: key.text(key.default) for name, key in all_keys().items()} | OF_APP


def test_files_that_repeat_the_code_say_what_it_says() -> None:
    for path, text in declared().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


def test_the_page_of_methods_has_every_method_and_says_what_is_sent() -> None:
    text = methods.PAGE.read_text(encoding="utf-8")
    assert methods.page(methods.written_costs(text)) == text, "run `make docs`"


def test_the_fingerprint_leaves_out_what_cannot_change_a_result() -> None:
    one = from_flat({})
    assert one == from_flat({"output": "/x", "actors": 7, "data-path": "/", "node-timeout": 1.0})
    assert one.fingerprint() != from_flat({"mu": 0.6}).fingerprint()
    assert (
        from_flat({"method": "fml"}).fingerprint()
        == from_flat({"method": "fml", "mu": 0.6}).fingerprint()
    ), "another method's option"
    assert one.fingerprint() != one.replace(seed=1).fingerprint()


def test_k_is_the_floor_of_the_share_and_at_least_one() -> None:
    for share, clients, sampled in [
        (0.29, 100, 29),
        (0.1, 100, 10),
        (0.2, 50, 10),
        (0.05, 10, 1),
        (1.0, 7, 7),
        (0.99, 10, 9),
    ]:
        assert from_flat({"participation": share, "clients": clients}).sampled == sampled


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("train", "head, all", ("head", "all")),
        ("clients-joined", "2:3, 4:5", ((2, 3), (4, 5))),
        ("clients-left", "2:3, 4", ((2, 3), (-1, 4))),
        ("held-out.samples", "all, 20", (None, 20)),
        ("lora.rank", "8, 08", (8, 8)),
        ("models", "my:Net, cnn1", ("my:Net", "cnn1")),
        ("observers", "", ()),
    ],
)
def test_a_list_has_its_values_and_prints_as_it_was_given(
    name: str, text: str, items: tuple[object, ...]
) -> None:
    key = find_key(name)
    found = pickle.loads(pickle.dumps(key.parse(text)))
    assert (tuple(found), key.text(found)) == (items, text)
    assert found == key.parse(text) != key.parse(f"{text},{text or 'mlflow'}")


def test_what_a_key_needs_is_a_key_and_a_value_it_can_have() -> None:
    needs = {k.needs for k in all_keys().values()} - {""}
    for name, equals, value in (need.partition("=") for need in needs):
        known = find_key(name)
        assert known.text(known.parse(value)) == value if equals else known


@pytest.mark.slow
def test_a_word_that_nests_deeply_is_a_text() -> None:
    assert scalar("[" * 5000) == "[" * 5000
