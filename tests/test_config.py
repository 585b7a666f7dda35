"""The Experiment: one object from YAML, from flat keys and from overrides; wrong input is one clear line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pfedlora_flwr import config
from pfedlora_flwr.config import all_keys, from_flat
from pfedlora_flwr.keys import UserError
from scripts.declare import ROOT, declared


def test_yaml_overrides_and_run_config_give_the_same_object(tmp_path: Path) -> None:
    conf = tmp_path / "a.yaml"
    conf.write_text("clients: 5\nlr: 1e-2\nadapter: {hidden-dim: 40, init: lora}\npartition.kind: iid\nactors: auto\n")
    from_yaml = config.load(conf, ["mu=0.75", "rounds=3"])
    flat = {"clients": 5, "lr": 0.01, "adapter.hidden-dim": 40, "adapter.init": "lora", "partition.kind": "iid", "mu": 0.75, "rounds": 3}
    assert from_yaml == from_flat(flat)
    assert from_flat(from_yaml.flat()) == from_yaml
    assert from_yaml.options.adapter_hidden_dim == 40
    assert from_yaml.actors is None


def test_pyproject_declares_every_key_with_its_default() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat: dict[str, object] = {}
    for name, value in written.items():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    assert flat == {name: key.text(key.default) for name, key in all_keys().items()}


def test_files_that_repeat_the_code_say_what_it_says() -> None:
    for path, text in declared().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("round=1", "unknown key 'round'; did you mean 'rounds'?"),
        ("rounds=ten", "rounds is 'ten'; allowed: an integer ≥ 1"),
        ("rounds=0", "rounds is 0; allowed: an integer ≥ 1"),
        ("rounds=2.5", "rounds is 2.5; allowed: an integer ≥ 1"),
        ("mu=1.2", "mu is 1.2; allowed: a number ≥ 0 and ≤ 1"),
        ("mu=.nan", "mu is nan; allowed: a number ≥ 0 and ≤ 1"),
        ("lr=0", "lr is 0.0; allowed: a number > 0"),
        ("momentum=1", "momentum is 1.0; allowed: a number ≥ 0 and < 1"),
        ("participation=0", "participation is 0.0; allowed: a number > 0 and ≤ 1"),
        ("augment=1", "augment is 1; allowed: true or false"),
        ("actors=none", "actors is 'none'; allowed: auto, or an integer ≥ 1"),
        ("setting=mixed", "setting is 'mixed'; allowed: heterogeneous | homogeneous"),
        ("dataset=mnist", "dataset is 'mnist'; allowed: digits | cifar10"),
        ("method=fedsgd", "method is 'fedsgd'; allowed: pfedlora"),
        ("method=nowhere:Thing", "module 'nowhere' cannot be imported"),
        ("method=json:JSONDecoder", "expected a subclass"),
        ("method=fedavg", "set setting=homogeneous"),
        ("min-clients=11", "min-clients is 11; allowed: auto, or at most clients, which is 10"),
        ("adapter.kind=wide", "adapter.kind is 'wide'; allowed: auto | reduced"),
        ("mu", "expected key=value"),
    ],
)
def test_wrong_values_are_one_clear_line(wrong: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        config.load(None, [wrong])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "rounds: [1, 2]\n", "1: 2\n"])
def test_wrong_yaml_is_one_clear_line(tmp_path: Path, text: str) -> None:
    conf = tmp_path / "a.yaml"
    conf.write_text(text)
    with pytest.raises(UserError) as caught:
        config.load(conf)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_leaves_out_what_cannot_change_a_result() -> None:
    one = from_flat({})
    assert one.fingerprint() == one.replace(output="/tmp/x", actors=7, data_path="/tmp", node_timeout=1.0).fingerprint()
    assert one.fingerprint() != from_flat({"mu": 0.6}).fingerprint()
    assert from_flat({"method": "fml"}).fingerprint() == from_flat({"method": "fml", "mu": 0.6}).fingerprint(), "another method's option"
    assert one.fingerprint() != one.replace(seed=1).fingerprint()


def test_k_is_the_floor_of_the_share_and_at_least_one() -> None:
    for share, clients, sampled in [(0.29, 100, 29), (0.1, 100, 10), (0.2, 50, 10), (0.05, 10, 1), (1.0, 7, 7), (0.99, 10, 9)]:
        assert from_flat({"participation": share, "clients": clients}).sampled == sampled
