"""The recipes of CONTRIBUTING.md, followed on a copy of the package: each takes as many files as
the table there says, and all of them together make a run and its report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.grown import Grown

METHOD = """
from dataclasses import dataclass

from pfedlora_flwr.experiment import NoOptions
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Method, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import tensors_of, weighted_mean
from pfedlora_flwr.rng import seeded


class Mine(Method):
    @dataclass(frozen=True)
    class Options(NoOptions):
        share: float = key(1.0, "how much of the own last layer is sent", above=0, high=1)

    title = "My Method"

    def state_init(self, seed):
        with seeded(seed):
            return tensors_of(self.client_model(0).last_layer())

    def local_update(self, model, received, data, visit):
        model.last_layer().load_state_dict(received)
        train_locally(model, data, visit)
        share, own = self.options.share, tensors_of(model.last_layer())
        sent = {n: share * t + (1 - share) * received[n] for n, t in own.items()}
        return Upload(sent, len(data))

    def aggregate(self, uploads, state, round):
        return weighted_mean(uploads)
"""
SCORE = '''
def error_rate(p: Predictions) -> float:
    """The share of wrong ones."""
    return 1 - accuracy(p)


'''
SPLIT = '''
def turns(e, labels, classes):
    """Every so-manieth sample."""
    step = e.clients * e.partition.stride
    return [np.arange(k, len(labels), step) for k in range(e.clients)]


'''
TABLE = """
from pfedlora_flwr.report.table import Table


def wrong_ones(study):
    runs = [run for outcome in study.in_order() for run in outcome.runs.values()]
    rows = [{"wrong": f"{run.result['error_rate']['final']:.4f}"} for run in runs]
    return Table("wrong_ones", "Wrong ones", rows)
"""
STEP = """
from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.keys import Section, key


@dataclass(frozen=True)
class Coarse(Section):
    step: float = key(0.0, "a client's upload is rounded to multiples of it; 0: it is not", low=0)
"""
LINK = """
from dataclasses import replace

from pfedlora_flwr.federation.link import Link


class Coarsened(Link):
    note = "uploads are coarse"

    @classmethod
    def is_used(cls, e, x):
        return e.coarse.step > 0

    def client_out(self, upload, received, visit):
        step = self.experiment.coarse.step
        coarse = {name: (t / step).round() * step for name, t in upload.tensors.items()}
        return replace(upload, tensors=coarse)
"""
WAY = '''
class Spare(Replace):
    """In the place of a run that is not done."""

    def check(self) -> None:
        if self.run.holds_run and self.run.is_completed(self.run.experiment()):
            raise UserError(f"{self.run.path} is done; spare=true replaces only a run that is not")
        super().check()


'''
USE = """
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pfedlora_flwr as p
from pfedlora_flwr.config import all_keys
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from tests.plain import CELLS, Plain

known = all_keys()
assert registry.NAMES[-1] == "mine"
assert registry.title("mine") == "My Method"
assert registry.ordered(["mine", "pfedlora", "other:Own"]) == ["mine", "other:Own", "pfedlora"]
assert known["mine.share"].allowed == "a number > 0 and ≤ 1"
assert len({style.of_method(name) for name in registry.NAMES}) == len(registry.NAMES)
assert style.of_method("mine") != style.of_method("other:Own")
assert ("mine", "heterogeneous") in CELLS
kinds = "pathological | dirichlet | iid | turns | natural"
assert known["partition.kind"].allowed == kinds
assert "| error-rate |" in known["verdict.score"].allowed

split = {"partition.kind": "turns", "partition.stride": 2, "clients": 2, "batch-size": 64}
plain = Plain(split | {"method": "mine", "mine.share": 0.5})
before = plain.state
plain.train(1)
for name, tensor in plain.uploads[1].tensors.items():
    own = dict(plain.models[1].last_layer().named_parameters())[name]
    assert torch.allclose(tensor, (own + before[name]) / 2)

keys = split | {"method": "mine", "rounds": 1, "models": "cnn5"}
keys |= {"coarse.step": 0.25, "remark": "of mine"}
run = p.run(keys | {"output": "run"})
result = json.loads(Path("run/result.json").read_text())
assert result["remark"] == "of mine"
assert result["error_rate"]["final"] == pytest.approx(1 - result["accuracy"]["final"])
with pytest.raises(p.UserError, match="spare=true replaces only a run that is not"):
    p.run(keys | {"output": "run", "spare": True})
run.report("page")
assert "Wrong ones" in Path("page/report.md").read_text()
"""


def table() -> dict[str, int]:
    """CONTRIBUTING's: by recipe the files of the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"(?m)^\| (a [^|]+?) \| (?:its folder and )?(\d+)[^|]* \|", text)
    return {name: int(files) for name, files in rows}


@pytest.mark.slow
def test_each_recipe_takes_the_files_that_it_names_and_together_they_make_a_run(
    tmp_path: Path,
) -> None:
    grown, files = Grown(tmp_path), {}

    def done(recipe: str) -> None:
        files[recipe] = len(grown.touched)
        grown.touched.clear()

    grown.add_file("methods/mine.py", METHOD)
    grown.add_line("methods/registry.py", "_CLASSES", '"mine": "Mine",')
    done("a method")

    grown.insert("training/metrics.py", "SCORES: dict[", SCORE)
    grown.put("training/metrics.py", "log_loss, ece)", "log_loss, ece, error_rate)")
    grown.add_line("training/metrics.py", "TITLES", '"error_rate": "error rate",')
    for field in ("    ece: float", "    validation_ece: float", "    ece: NotRequired[Score]"):
        line = field.replace("ece", "error_rate")
        grown.insert("runs/rows.py", field, f"{line}\n")
    done("a score")

    grown.insert("data/partition.py", "DRAWN: dict[", SPLIT)
    grown.add_line("data/partition.py", "DRAWN", '"turns": turns,')
    grown.insert(
        "data/keys.py",
        "    alpha: float = key(",
        '    stride: int = key(1, "turns: of how many samples one is taken", low=1)\n',
    )
    done("a split with a key")

    grown.insert(
        "experiment.py",
        "    precision: str = key(",
        '    remark: str = key("", "is in result.json")\n',
    )
    grown.put(
        "runs/result.py", '"rounds": state.round,', '"rounds": state.round, "remark": e.remark,'
    )
    done("a key")

    for name, text in {"__init__": "", "keys": STEP, "link": LINK}.items():
        grown.add_file(f"features/coarse/{name}.py", text)
    grown.touched.clear()
    grown.insert(
        "features/links.py",
        "LINKS: tuple",
        "from pfedlora_flwr.features.coarse.link import Coarsened\n\n",
    )
    grown.put("features/links.py", "    OfRecords,\n", "    OfRecords,\n    Coarsened,\n")
    grown.insert(
        "experiment.py",
        "from pfedlora_flwr.features.dp.keys",
        "from pfedlora_flwr.features.coarse.keys import Coarse\n",
    )
    grown.insert(
        "experiment.py", "    dp: DP = section(DP)", "    coarse: Coarse = section(Coarse)\n"
    )
    done("a privacy link with keys")

    grown.insert("runs/begin.py", "@dataclass(frozen=True)\nclass Resume", WAY)
    grown.put("runs/begin.py", "    way = Resume if", "    way = Spare if x.spare else Resume if")
    grown.insert(
        "execution.py",
        "    verdict_margin: float = key(",
        '    spare: bool = key(False, "replaces a run that is not done")\n',
    )
    done("a way to begin")

    grown.add_file("report/wrong_ones.py", TABLE)
    grown.add_import("report/tables.py", "from pfedlora_flwr.report.wrong_ones import wrong_ones")
    grown.put("report/tables.py", "*TABLES, clients,", "*TABLES, wrong_ones, clients,")
    done("a table of a report")

    assert files == table()
    grown.run(USE)
