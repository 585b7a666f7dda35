"""Tables as sites have them: values that are missing, columns of text, labels that each site
spells in its own way (`data.missing`, `data.categories`, `data.class-map`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pfedlora_flwr
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site, forget
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.clients import RunFailed
from pfedlora_flwr.ops.evaluate import evaluate
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import keys_in, named_keys
from tests.test_joining import serve

pytestmark = pytest.mark.usefixtures("own_place")

pd = pytest.importorskip("pandas")
COLOURS = "red", "green", "blue=ish"


def table(rows: int = 120, seed: int = 0, colours: tuple[str, ...] = COLOURS) -> Any:
    """With gaps in `size` and `colour`, and none in `weight`."""
    drawn = np.random.default_rng(seed)
    label = np.arange(rows) % 2
    size = drawn.exponential(2, rows) + 3 * label
    size[drawn.permutation(rows)[: rows // 5]] = np.nan
    colour = drawn.choice(colours, rows).astype(object)
    colour[drawn.permutation(rows)[:4]] = None
    text = np.where(label, "malignant", "benign")
    weight = drawn.normal(70, 9, rows) - label
    return pd.DataFrame({"size": size, "colour": colour, "weight": weight, "label": text})


def keys(**more: object) -> dict[str, Any]:
    named = named_keys(more)
    return {"dataset": "csv:t.csv", "clients": 2, "partition.kind": "iid", "rounds": 2} | named


@pytest.mark.parametrize("middle", ["mean", "median"])
@pytest.mark.parametrize("source", ["csv", "parquet", "function"])
def test_what_is_missing_gets_the_middle_of_the_training_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, middle: str, source: str
) -> None:
    frame = table()
    if source == "function":
        (tmp_path / "site_rows.py").write_text(
            "import pandas as pd\n"
            "def rows():\n"
            "    t = pd.read_csv('t.csv')\n"
            "    return t.drop(columns='label'), (t['label'] == 'malignant').astype(int)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        frame.to_csv("t.csv", index=False)
        name = "site_rows:rows"
    else:
        getattr(frame, f"to_{source}")(f"t.{source}", index=False)
        name = f"{source}:t.{source}"
    e = from_flat(keys(dataset=name, data__missing=middle, data__drop="colour"))
    setup = DataSetup(e)
    raw = setup.dataset.inputs
    assert np.isnan(raw).any(), "kept as missing until the parts are known"
    trained = np.concatenate([split.train for split in setup.trained])
    wanted = getattr(np, f"nan{middle}")(raw[trained], 0)
    np.testing.assert_allclose(setup.constants[0], wanted)
    np.testing.assert_allclose(setup.constants[1], np.nanstd(raw[trained], 0))
    for client in range(2):
        site = Site.find(e, client, {"partition-id": client})
        for rows, part in zip(site.split.parts, _parts(site), strict=True):
            filled = np.where(np.isnan(raw[rows]), wanted, raw[rows])
            again = part * np.array(setup.constants[1]) + wanted
            np.testing.assert_allclose(again, filled, rtol=1e-5)


def _parts(site: Site) -> list[np.ndarray]:
    data = site.load(torch.device("cpu"))
    return [part.inputs.numpy() for part in (data.train, data.validation, data.test)]


@pytest.mark.slow
def test_a_model_takes_gaps_and_texts_wherever_it_is_used(tmp_path: Path) -> None:
    frame = table()
    frame.to_csv("t.csv", index=False)
    given = keys(data__missing="mean", data__categories="one-hot")
    run = pfedlora_flwr.run(output="run", progress=False, engine="local", **given)
    names = ("size", *(f"colour={c}" for c in sorted(COLOURS)), "weight")
    trained = load_trained(Path("run"), 0)
    assert trained.feature_names == names
    notes = " ".join(run.result["data_notes"])
    assert "missing, filled by the mean of training: size (24), colour=blue=ish (4)" in notes

    asked = frame.drop(columns="label").iloc[:9]
    asked.to_csv("new.csv", index=False)
    asked.to_json("new.jsonl", orient="records", lines=True)
    mean = dict(zip(names, trained.about["mean"], strict=True))
    plain = pd.DataFrame({"size": asked["size"].fillna(mean["size"]), "weight": asked["weight"]})
    for name in names[1:4]:
        is_it = (asked["colour"] == name.removeprefix("colour=")).astype(float)
        plain[name] = is_it.where(asked["colour"].notna(), mean[name])
    rows = plain[list(names)].to_numpy()
    wanted = trained.logits(rows).numpy()
    for way in (asked, "new.csv", "new.jsonl"):
        found = run.predict(0, way)
        np.testing.assert_allclose(found, _softmax(wanted), rtol=1e-4)
    [one] = evaluate([trained], None)
    assert one["samples"] == 6

    export(trained, "torch-export", Path("m.pt2"))
    gaps = rows.copy()
    gaps[asked["size"].isna(), 0] = np.nan
    gaps[asked["colour"].isna(), 1:4] = np.nan
    program = torch.export.load("m.pt2").module()
    np.testing.assert_allclose(
        program(torch.tensor(gaps)).detach().numpy(), wanted, rtol=1e-3, atol=1e-5
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.from_numpy(logits), 1).numpy()


@pytest.mark.slow
def test_sites_that_spell_labels_and_colours_otherwise_train_together(tmp_path: Path) -> None:
    spelt = {"gutartig": "benign", "B": "benign", "bösartig": "malignant", "M": "malignant"}
    lines = [f"{label},{name}" for label, name in spelt.items()]
    Path("map.csv").write_text("\n".join(["label,class", *lines]))
    own = [{}, {"benign": "gutartig", "malignant": "bösartig"}, {"benign": "B", "malignant": "M"}]
    nodes = []
    for site, words in enumerate(own):
        rows = table(seed=site, colours=COLOURS[: 2 + site // 2]).replace({"label": words})
        rows.to_csv(f"site{site}.csv", index=False)
        nodes.append({"dataset": f"csv:{tmp_path}/site{site}.csv", "state-path": f"s{site}"})
        nodes[-1] |= {"class-map": "map.csv"} if words else {}
    names = "size", "colour=red", "colour=green", "weight"
    same = keys_in(
        "models=mlp1 dataset=digits classes=2 data.missing=mean data.categories=one-hot "
        "input-shape=4 participation=1.0"
    ) | {"data.features": ",".join(names)}
    result = serve(tmp_path / "run", nodes, **same)
    assert result["status"] == "completed"
    for site in range(3):
        [about] = Path(f"s{site}").glob("*/*/about.json")
        told = json.loads(about.read_text())
        assert told["class_names"] == ["benign", "malignant"]
        assert tuple(told["feature_names"]) == names
        trained = load_trained(about.parent.parent, int(about.parent.name))
        assert evaluate([trained], None)[0]["accuracy"] > 0
    del nodes[1]["class-map"]
    forget()
    with pytest.raises(RunFailed, match="its classes are"):
        serve(tmp_path / "other", nodes, **same, node_timeout=3)


def test_a_map_of_classes_merges_labels_of_every_source(tmp_path: Path) -> None:
    Path("map.csv").write_text("label,class\n0,even\n2,even\n1,odd\n3,odd\n")
    digits = np.arange(60) % 4
    np.savez("t.npz", inputs=np.random.default_rng(0).normal(size=(60, 3)), labels=digits)
    table(60).assign(label=digits).to_csv("t.csv", index=False)
    for name in ("npz:t.npz", "csv:t.csv"):
        e = from_flat(keys(dataset=name, data__class_map="map.csv", data__missing="mean"))
        found = DataSetup(e).dataset
        assert found.class_names == ("even", "odd")
        assert (np.asarray(found.labels) == digits % 2).all()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "column 'size' has no value in row"),
        ({"data__missing": "mode"}, "data.missing is .mode.; allowed: refuse . mean . median"),
        (
            {"data__missing": "mean", "data__categories": "one-hot", "data__drop": "colour,size"},
            "column 'note' has 120 different texts, and data.categories=one-hot takes up to 100",
        ),
        (
            {"data__categories": "one-hot", "data__drop": "note,size"},
            "column 'colour' has no value in row",
        ),
        ({"data__class_map": "none.csv"}, "class map .*none.csv: No such file"),
        ({"data__class_map": "t.csv"}, "expected a CSV of two columns, label and class"),
        ({"data__class_map": "twice.csv"}, "it has a label twice"),
        ({"data__class_map": "chain.csv"}, "'b' is a class, and a label of another one"),
    ],
    ids=str,
)
def test_what_cannot_be_read_so_is_one_line(more: dict[str, object], told: str) -> None:
    notes = [f"patient {i}" for i in range(120)]
    table().assign(note=notes).to_csv("t.csv", index=False)
    Path("twice.csv").write_text("label,class\na,b\na,c\n")
    Path("chain.csv").write_text("label,class\na,b\nb,c\n")
    with pytest.raises(UserError, match=told):
        _ = DataSetup(from_flat(keys(**more))).dataset
