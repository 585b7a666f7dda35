"""The contract of a method: what every method says of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserCodeError
from pfedlora_flwr.federation import visit
from pfedlora_flwr.methods import method as contract
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.models.task import Task
from scripts.methods import ANY_MODEL, WITH_LISTS, with_lists


@pytest.mark.parametrize("name", ["global", "mix-small", "A.b_c-9", "tests", "x" * 40])
def test_further_predictors_have_plain_names(name: str) -> None:
    assert contract.is_predictor(name)


@pytest.mark.parametrize(
    "name",
    ["test", "validation", "", "x" * 41, "a b", "a\n", "é", "=1+1", "-x", ".", "\ud800", "<b>", 3],
)
def test_a_further_predictor_of_another_name_is_named_at_its_author(name: object) -> None:
    assert not contract.is_predictor(name)
    method = SimpleNamespace(
        experiment=SimpleNamespace(method="mine:Own"),
        other_predictors=lambda model, received: {"global": None, name: None},
    )
    line = r"method 'mine:Own': ValueError: other_predictors has the name .*; allowed: at most 40"
    with pytest.raises(UserCodeError, match=line) as told:
        visit.other_accuracies(cast(Any, method), None, {}, cast(Any, []))
    assert str(told.value).isprintable()


class Raises(Standalone):
    def state_init(self, seed: int) -> Tensors:
        raise KeyError("in state_init")

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """Relies on an error of its own member."""
        try:
            return self.state_init(0)
        except KeyError:
            return {"state": torch.zeros(1)}

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        raise Refused("not this one")


def test_what_a_users_method_raises_is_told_as_its_error_where_it_is_called_from_outside() -> None:
    name = "tests.methods.test_contract:Raises"
    method = registry.make(from_flat({"method": name}), Task(10))
    assert isinstance(method, Standalone)
    assert (method.classes, method.predictor(torch.nn.Identity())(3)) == (10, 3)
    with pytest.raises(UserCodeError, match=f"method '{name}': KeyError: 'in state_init', at "):
        method.state_init(0)
    assert list(method.download({}, 0, 1)) == ["state"]
    with pytest.raises(Refused, match="not this one"):
        method.check(Upload({}, 1), {}, 0)


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_method_says_what_documents_tell_of_it(name: str) -> None:
    found = registry.find(name)
    assert all(vars(found).get(fact) for fact in ("title", "paper", "idea"))
    assert all((found.shares, found.merges, found.assumes))


def test_the_server_s_column_tells_what_secure_aggregation_takes() -> None:
    """But for the two methods that the page's first table names."""
    means = {name for name in ANY_MODEL if registry.find(name).merges.startswith("mean")}
    takes = {name for name in ANY_MODEL if registry.find(name).averages}
    assert means ^ takes == {"fedkd", "pfedlora_plus"}


@pytest.mark.parametrize(
    "file",
    [
        # which has a table of what every method's upload holds
        pytest.param(file, marks=pytest.mark.slow if file.stem == "audit" else [], id=file.stem)
        for file in WITH_LISTS
    ],
)
def test_the_documents_lists_of_methods_are_the_classes(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "<!-- methods: " in text
    assert with_lists(text) == text, "make docs"
