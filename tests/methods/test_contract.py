"""The contract of a method: what an older version's method is told, and what every method says of
itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import method as contract
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.models.task import Task
from scripts.methods import WITH_LISTS, with_lists


def test_a_method_that_uses_an_older_name_gets_a_line_with_the_new_one() -> None:
    method = registry.make(from_flat({"method": "standalone"}), Task(10))
    with pytest.raises(AttributeError, match="no 'widths' any more: ask `width_of`"):
        getattr(method, "widths")  # noqa: B009 - a type checker knows that it is not there
    with pytest.raises(AttributeError, match="no attribute 'nowhere'"):
        getattr(method, "nowhere")  # noqa: B009
    with pytest.raises(ImportError, match=r"tensors_of moved: .* pfedlora_flwr\.methods\.tensors"):
        getattr(contract, "tensors_of")  # noqa: B009
    with pytest.raises(UserError, match="it has 'predict', which is no longer used: `pred"):
        registry.find("tests.methods.test_contract:Older")


class Older(Standalone):
    def predict(self, model: object, inputs: Tensor) -> Tensor:
        return inputs


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_method_says_what_documents_tell_of_it(name: str) -> None:
    found = registry.find(name)
    said = [
        vars(found).get(fact) for fact in ("title", "paper", "idea", "shares", "merges", "assumes")
    ]
    assert all(said)


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
