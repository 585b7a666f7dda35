"""Datasets: one entry says all that the program knows of one, and it says the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pfedlora_flwr.config import all_keys, from_flat
from pfedlora_flwr.data import cifar, datasets, registry
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from tests.grown import Grown

READER = """
import numpy as np

from pfedlora_flwr.data.source import Arrays

def stripes(_text, _how):
    labels = np.arange(120, dtype=np.int64) % 3
    images = np.zeros((120, 32, 32, 3), np.uint8)
    for image, label in zip(images, labels):
        image[:: label + 2] = 255
    return Arrays(images, labels, ["second", "third", "fourth"])
"""
USE = """
import pytest
from pfedlora_flwr.comparison.estimate import work
from pfedlora_flwr.config import all_keys, from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.report import words
from pfedlora_flwr.runs.result import to_target
from tests.plain import Plain

own = "folder:… | npz:… | csv:… | parquet:… | hf:… | package.module:function"
assert all_keys()["dataset"].allowed == f"digits | cifar10 | cifar100 | synthetic:… | {own} | stripes"
assert all_keys()["target-accuracy"].meaning.endswith("(0.9, for cifar100 0.5, for stripes 0.7)")
with pytest.raises(UserError, match="function | stripes"):
    from_flat({"dataset": "spots"})
e = from_flat({"dataset": "stripes", "clients": 3, "partition.classes-per-client": 1})
assert words.key("dataset", e.dataset) == "Stripes"
assert to_target(e, [{"parameters_up": 1, "parameters_down": 1, "bytes_up": 1, "bytes_down": 1, "flops": 1, "round": 1,
                      "accuracy": 0.7, "evaluated": 3}])["accuracy"] == 0.7
assert datasets.count_classes("stripes") == 3
assert work(RunConfig(e)) == work(RunConfig(e.replace(dataset="synthetic:120", classes=3)))
assert not list(datasets.cache.cache_root().glob("*")), "counted from files, although the entry tells"
plain = Plain(e.flat())
plain.train(1)
assert plain.uploads[0].samples == 32
"""


@pytest.mark.slow
def test_a_dataset_is_one_file_and_one_entry(tmp_path: Path) -> None:
    grown = Grown(tmp_path)
    grown.add_file("data/stripes.py", READER)
    grown.add_import("data/registry.py", "from pfedlora_flwr.data.stripes import stripes")
    grown.add_line(
        "data/registry.py",
        "_SOURCES",
        'Source("stripes", stripes, "Stripes", classes=3, samples=120, shape=(3, 32, 32),'
        " target=0.7),",
    )
    grown.run(USE)


@pytest.mark.parametrize("name", ["digits", "synthetic:30"])
def test_an_entry_counts_what_is_there(name: str) -> None:
    loaded = datasets.load(name)
    assert (datasets.count_classes(name), datasets.count_samples(name)) == (
        loaded.classes,
        len(loaded.labels),
    )


def test_own_data_is_counted_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    np.savez(
        tmp_path / "a.npz", images=np.zeros((12, 32, 32, 3), np.uint8), labels=np.arange(12) % 4
    )
    name = f"npz:{tmp_path / 'a.npz'}"
    assert (datasets.count_classes(name), datasets.count_samples(name)) == (4, 12)


def test_the_two_cifars_have_a_name_for_each_class() -> None:
    for one in (cifar.CIFAR10, cifar.CIFAR100):
        assert len(one.class_names) == registry.find(one.name).classes


def test_an_unknown_name_is_one_clear_line_wherever_it_is_found() -> None:
    for name in ("mnist", "folder:", "cifar10:x"):
        said = set()
        for ask in (
            datasets.load,
            datasets.count_classes,
            lambda name: from_flat({"dataset": name}),
        ):
            with pytest.raises(UserError) as caught:
                ask(name)
            said.add(str(caught.value))
        assert said == {f"dataset is {name!r}; allowed: {all_keys()['dataset'].allowed}"}


def test_only_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["digits", "synthetic:30", "folder:own", "npz:a.npz"]
    assert [registry.located(name) for name in names] == [
        "digits",
        "synthetic:30",
        f"folder:{tmp_path}/own",
        f"npz:{tmp_path}/a.npz",
    ]


def test_the_names_of_classes_say_how_many_there_are() -> None:
    """On a server whose sites have data of their own, which it does not see."""
    keys = {"data.class-names": "benign,malignant,normal", "input-shape": "4"}
    assert DataSetup(from_flat(keys)).task.classes == 3
