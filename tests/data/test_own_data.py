"""Data of one's own: tables, Hugging Face datasets, arrays of any kind, functions; what normalises
them, and whose they are."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import Site, forget, without_own_folders
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.training.kinds import SERIES, VECTORS
from tests import wrong_made as made
from tests.conftest import Call, key_words, keys_in, run_locally

pytestmark = pytest.mark.usefixtures("own_place")

SITES = ["north"] * 30 + ["east"] * 12 + ["west"] * 9
LABELS = ["sick", "well", "sick"] * 17


def table() -> dict[str, list[object]]:
    """51 rows of three sites: a feature of any numbers, one of small changes about a large mean, a
    constant one."""
    values = np.random.default_rng(0).normal(3, 2, 51)
    return {
        "a": [*values],
        "site": [*SITES],
        "b": [1e6 + i for i in range(51)],
        "c": [7] * 51,
        "label": [*LABELS],
    }


def write_csv(path: Path) -> None:
    columns = table()
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in (columns, *rows)))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_with_a_client_column(kind: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv")
    pq.write_table(pa.table(table()), tmp_path / "t.parquet")
    keys = {
        "dataset": f"{kind}:t.{kind}",
        "clients": 2,
        "partition.kind": "natural",
        "data.client-column": "site",
    }
    e = from_flat(keys)
    setup = DataSetup(e)
    dataset, partition = setup.dataset, setup.partition
    assert (dataset.kind, dataset.shape) == (VECTORS, (3,))
    assert dataset.class_names == ("sick", "well")
    assert [dataset.class_names[i] for i in dataset.labels] == LABELS
    assert partition.owners == ("east", "north"), "in sorted order, without the one that has 9 rows"
    for split, owner, sizes in zip(
        partition.clients, partition.owners, ([10, 1, 1], [24, 3, 3]), strict=True
    ):
        assert [len(part) for part in (split.train, split.validation, split.test)] == sizes
        assert {SITES[i] for part in (split.train, split.validation, split.test) for i in part} == {
            owner
        }

    ours = np.array([table()["a"], table()["b"], table()["c"]]).T
    trained = ours[np.concatenate([split.train for split in partition.clients])]
    mean, std = trained.mean(0), trained.std(0)
    std[2] = 1
    site = Site.find(e, 1, {})
    assert np.allclose(site.mean, mean)
    assert np.allclose(site.std, std)
    test = site.load(torch.device("cpu")).test
    assert np.allclose(
        test.batch(slice(None)).numpy(), (ours[site.split.test] - mean) / std, atol=1e-6
    )
    assert not test.batch(slice(None))[:, 2].any(), "what is constant is 0"


def test_columns_of_no_numbers_are_left_out_and_named(tmp_path: Path) -> None:
    rows = {
        "note": ["…"] * 4,
        "a": [1, 2, 3, 4],
        "day": pa.array([0, 1, 2, 3], pa.date32()),
        "b": [True] * 4,
        "label": ["x", "y"] * 2,
    }
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    dataset = datasets.load("parquet:t.parquet")
    assert dataset.feature_names == ("a", "b")
    left_out = "left out: 2 columns of no numbers: note (string), day (date32[day])"
    assert dataset.notes == (f"{left_out}; data.categories=one-hot keeps categories",)
    with pytest.raises(
        UserError,
        match=(
            r"^t\.parquet: column 'note' holds string, and features are numbers: turn it into"
            r" numbers"
        ),
    ):
        datasets.load("parquet:t.parquet", Reading(feature_names=("a", "note")))
    images = {"image": [{"bytes": b"", "path": None}] * 2, "label": ["x", "y"]}
    pq.write_table(pa.table(images), tmp_path / "i.parquet")
    with pytest.raises(
        UserError,
        match=r"no numbers in image \(struct<.*; a folder of files with images is hf:PATH$",
    ):
        datasets.load("parquet:i.parquet")


def columns_of(path: Path, **keys: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The features of a table, and the notes on it."""
    how = Reading.of(from_flat({f"data.{name}": value for name, value in keys.items()}), "")
    found = datasets.load(f"{path.suffix[1:]}:{path}", how)
    assert found.shape == (len(found.feature_names or ()),)
    return found.feature_names or (), found.notes


def test_labels_that_are_many_whole_numbers_are_told(tmp_path: Path) -> None:
    """A length of stay is no class, although its values can be told apart."""
    for days, told in ((11, True), (10, False)):
        of, path = np.arange(220), tmp_path / f"{days}.csv"
        pa.csv.write_csv(pa.table({"age": of / 7, "label": of % days - 1}), path)
        notes = columns_of(path)[1]
        assert notes == told * (
            "label 'label' has 11 whole numbers, each a class: their order is not used;"
            " data.class-map makes a few classes of them",
        )


def test_features_are_named_or_dropped_and_those_that_may_be_none_are_told(tmp_path: Path) -> None:
    for kind, writer in (("csv", pa.csv.write_csv), ("parquet", pq.write_table)):
        path, of = tmp_path / f"t.{kind}", np.arange(60)
        label = np.where(of % 2, "b", "a")
        values = np.random.default_rng(0).normal(size=60)
        patient, days = of[::-1] + 10**5, np.where(of % 2, of % 6, 10 + of % 4)
        writer(pa.table({"days": days, "patient": patient, "crp": values, "label": label}), path)
        names, notes = columns_of(path)
        assert names == ("days", "patient", "crp")
        mend = "what is no feature is left out by data.drop"
        assert notes == (
            f"whole numbers that never repeat, as those of rows do: patient; {mend}",
            f"each value has one label, as that of another target: days; {mend}",
        )
        assert columns_of(path, features="crp,days")[0] == ("crp", "days")
        assert columns_of(path, drop="patient,days") == (("crp",), ())
        for keys in ({"drop": "crp,nothing"}, {"features": "nothing"}):
            with pytest.raises(UserError, match=f"no column 'nothing', but .*data.{min(keys)}"):
                columns_of(path, **keys)


def test_a_hugging_face_table_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    rows = hf.Dataset.from_dict({"a": [1, 2], "seen": [{"x": 1}, {"x": 2}], "label": ["x", "y"]})
    rows.save_to_disk(str(tmp_path / "some"))
    rows.remove_columns(["a"]).save_to_disk(str(tmp_path / "none"))
    dataset = datasets.load("hf:some")
    assert dataset.feature_names == ("a",)
    assert dataset.notes == ("left out: 1 column of no numbers: seen (struct<x: int64>)",)
    with pytest.raises(
        UserError, match=r"no columns of features beside label, and no numbers in seen"
    ):
        datasets.load("hf:none")


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_run_does_not_go_on_with_other_columns(own: bool, tmp_path: Path, pfedlora: Call) -> None:
    turned = ["b", "site", "a", "c", "label"]
    write_csv(tmp_path / "t.csv")
    keys = keys_in(
        "dataset=csv:t.csv data.client-column=site clients=2 partition.kind=natural rounds=1"
    )
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    about = tmp_path / "run" / "clients" / "0" / "about.json"
    if own:  # as a node leaves it whose own data this is
        whole = json.loads(about.read_text())
        about.write_text(
            json.dumps(whole | {"partition": "own", "site": {"dataset": f"csv:{tmp_path}/t.csv"}})
        )
        shutil.rmtree(tmp_path / "node", ignore_errors=True)
        shutil.copytree(about.parent, tmp_path / "node" / "0")
    columns = table()
    (tmp_path / "t.csv").write_text(
        "\n".join(
            ",".join(map(str, row))
            for row in (turned, *zip(*(columns[n] for n in turned), strict=True))
        )
    )
    datasets.load.cache_clear()
    forget()
    code, _, err = pfedlora("evaluate", "node" if own else "run", "--client", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "t.csv is not what client 0 was trained on; restore it, or give DATA" in err
    if not own:
        again = (
            "run",
            "--engine",
            "local",
            "--quiet",
            *key_words(keys),
        )
        code, _, err = pfedlora(*again, "-o", "output=run", "-o", "rounds=2", "--resume")
        assert (code, err.count("\n")) == (2, 1)
        assert "the data or its partition is not what the run in" in err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["saved", "files"])
def test_a_run_on_a_hugging_face_dataset_without_a_network(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hf.config, "HF_HUB_OFFLINE", True)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), np.uint8)
    if kind == "saved":
        features = hf.Features({"picture": hf.Image(), "kind": hf.ClassLabel(names=["a", "b"])})
        rows = {"picture": [Image.fromarray(p) for p in pixels], "kind": [i % 2 for i in range(24)]}
        hf.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    else:
        made.parquets({"count": 12}, {"label": 1, "count": 12})(tmp_path)
        (tmp_path / "data").rename(tmp_path / "files")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    keys = keys_in("clients=2 partition.kind=iid rounds=1 models=tests.methods.narrow:Narrow") | {
        "dataset": f"hf:../{kind}"
    }
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    about = json.loads((done.output / "clients" / "0" / "about.json").read_text())
    assert about["class_names"] == (["a", "b"] if kind == "saved" else ["0", "1"])
    assert [(row["samples"], row["test"]) for row in done.result["per_client"].values()] == [
        (10, 1)
    ] * 2, "24 samples"


@pytest.mark.slow
def test_a_hub_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = pytest.importorskip("datasets")
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    local = r"; fetch it where there is a network, `save_to_disk\(PATH\)`, and take hf:PATH$"
    unanswered = (
        r"the hub does not give it \((TimeoutError: no answer in 1 seconds|.*timed out.*)\), nor"
        r" the library's own cache \(.*\)"
    )
    begun = time.monotonic()
    with made.no_hub(tmp_path):
        for offline, expected in ((False, unanswered), (True, "cannot be read: .*")):
            monkeypatch.setattr(hf.config, "HF_HUB_OFFLINE", offline)
            with pytest.raises(UserError, match=expected + local):
                datasets.load("hf:some/name")
    assert time.monotonic() - begun < 10


@pytest.mark.slow
@pytest.mark.parametrize("offline", [False, True])
def test_what_the_library_has_fetched_before_needs_no_hub(
    offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = pytest.importorskip("datasets")
    (tmp_path / "name").mkdir()
    pq.write_table(
        pa.table({"a": [*range(20)], "label": ["x", "y"] * 10}), tmp_path / "name" / "train.parquet"
    )
    hf.load_dataset(str(tmp_path / "name"), cache_dir=str(tmp_path / "hub"))
    (tmp_path / "hub" / "name").rename(tmp_path / "hub" / "some___name")
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hf.config, "HF_HUB_OFFLINE", offline)
    with made.no_hub(tmp_path):
        assert datasets.load("hf:some/name").inputs[:, 0].tolist() == [*range(20)]
    assert hf.config.HF_HUB_OFFLINE is offline
    assert [
        message.endswith("; it is taken from the library's own cache")
        for message in caplog.messages
    ] == [True] * (not offline)


def test_classes_that_a_nodes_table_has_not_keep_their_place(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv")
    dataset = datasets.load(
        "csv:t.csv", Reading(client_column="site", class_names=("well", "ill", "sick"))
    )
    assert [dataset.class_names[i] for i in dataset.labels] == LABELS
    assert dataset.empty_classes == ["ill"]
    (tmp_path / "one.csv").write_text("a,label\n1,ill\n2,ill\n")
    assert datasets.load("csv:one.csv", Reading(class_names=("well", "ill"))).labels.tolist() == [
        1,
        1,
    ]
    assert datasets.load("csv:one.csv", Reading(one_class=True)).class_names == ("ill",), (
        "what is evaluated"
    )
    np.savez(tmp_path / "one.npz", inputs=np.eye(3), labels=[1, 1, 1], class_names=["well", "ill"])
    assert datasets.load("npz:one.npz").empty_classes == ["well"]
    (tmp_path / "latin.csv").write_bytes("a,label\n1,grün\n2,rot\n".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"^latin\.csv: its text is not UTF-8; save it anew with this encoding$"
    ):
        datasets.load("csv:latin.csv")
    with pytest.raises(
        UserError, match=r"column 'label' has well, and data\.class-names ill, sick"
    ):
        datasets.load("csv:t.csv", Reading(client_column="site", class_names=("ill", "sick")))


@pytest.mark.parametrize(
    ("settings", "line", "told"),
    [
        (
            {"dataset": "npz:/srv/a b/x.npz"},
            "dataset 'npz:/srv/a b/x.npz' has",
            "dataset 'npz:x.npz' has",
        ),
        ({"dataset": "folder:/srv/f/"}, "/srv/f/cat/1.png: no image", "f/cat/1.png: no image"),
        ({"dataset": "folder:/srv/f"}, "denied: '/srv'", "denied: 'srv'"),
        ({"dataset": "csv:own/x.csv"}, "HERE/own/x.csv: it has no rows", "x.csv: it has no rows"),
        ({"dataset": "csv:own/x.csv"}, "own/x.csv: it has no rows", "x.csv: it has no rows"),
        (
            {"dataset": "nzp:/srv/x"},
            "dataset is 'nzp:/srv/x'; allowed",
            "dataset is 'nzp:x'; allowed",
        ),
        ({"dataset": "hf:a/b", "data-path": "~/c"}, "hf:a/b, HOME/c/d: bad", "hf:a/b, c/d: bad"),
        ({"state-path": "~/st"}, "HOME/st/token/3: no room", "st/token/3: no room"),
        ({"partition-id": 3}, "data-path '/srv/runs' does not", "data-path '/srv/runs' does not"),
    ],
)
def test_a_line_for_the_server_has_no_folder_of_the_nodes_settings(
    settings: dict[str, str], line: str, told: str, tmp_path: Path
) -> None:
    line = line.replace("HERE", str(tmp_path)).replace("HOME", str(Path.home()))
    assert without_own_folders(line, settings) == told


@pytest.mark.parametrize(
    ("labels", "state", "told"),
    [
        (11, "state", "dataset 'npz:own.npz' has 11 classes, the run 10: restore its classes, or "),
        (10, "file/state", "state-path state: Not a directory"),
    ],
)
def test_a_node_tells_the_server_what_is_wrong_and_its_log_where_it_lies(
    labels: int, state: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    np.savez(tmp_path / "own.npz", inputs=np.eye(33), labels=np.arange(33) % labels)
    node = {"dataset": f"npz:{tmp_path}/own.npz", "state-path": str(tmp_path / state)}
    e = from_flat({"clients": 2, "classes": 10, "input-shape": "33"})
    said = PersonalisedClient(e, node).get_properties({})["error"]
    assert str(said).startswith(told)
    in_full = told.replace("own.npz", f"{tmp_path}/own.npz")
    assert in_full.replace("path state:", f"path {tmp_path}/file/state:") in caplog.text


def test_a_full_disk_of_a_node_is_a_line_and_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PersonalisedClient, "_claim", full)
    said = PersonalisedClient(from_flat({"clients": 2}), {}).get_properties({})["error"]
    assert said == (
        "No space left on device: nothing that was written before is lost; make room and continue"
        " with resume=true"
    )


def test_series_are_normalised_by_channel(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal([[1], [100]], [[1], [9]], (40, 2, 16))
    np.savez(tmp_path / "s.npz", inputs=inputs, labels=np.arange(40) % 2)
    e = from_flat({"dataset": "npz:s.npz", "clients": 2, "partition.kind": "iid"})
    assert (DataSetup(e).task.kind, DataSetup(e).task.shape) == (SERIES, (2, 16))
    partition = DataSetup(e).partition
    trained = inputs[np.concatenate([split.train for split in partition.clients])]
    site = Site.find(e, 0, {})
    assert np.allclose(site.mean, trained.mean((0, 2)))
    own = site.load(torch.device("cpu")).train.batch(slice(None)).numpy()
    expected = (inputs[site.split.train] - trained.mean((0, 2))[:, None]) / trained.std((0, 2))[
        :, None
    ]
    assert np.allclose(own, expected, atol=1e-4)


def test_grey_images_of_another_size_stay_bytes_until_the_batch(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 20, 28), np.uint8)
    np.savez(tmp_path / "g.npz", images=images, labels=np.arange(40) % 2, clients=["b", "a"] * 20)
    e = from_flat({"dataset": "npz:g.npz", "clients": 2, "partition.kind": "natural"})
    assert DataSetup(e).task.shape == (1, 20, 28)
    site = Site.find(e, 0, {})
    train = site.load(torch.device("cpu")).train
    assert train.inputs.dtype == torch.uint8
    partition = DataSetup(e).partition
    trained = images[np.concatenate([split.train for split in partition.clients])] / 255
    expected = (images[site.split.train] / 255 - trained.mean()) / trained.std()
    assert np.allclose(train.batch(slice(None)).numpy(), expected[:, None], atol=1e-5)


def test_images_of_16_bits_become_bytes_as_those_in_files_do(tmp_path: Path) -> None:
    deep = np.random.default_rng(0).integers(0, 2**16, (12, 8, 9), np.uint16)
    np.savez(tmp_path / "d.npz", images=deep, labels=np.arange(12) % 2)
    dataset = datasets.load("npz:d.npz")
    assert (dataset.inputs.dtype, dataset.shape) == (np.uint8, (1, 8, 9))
    assert np.abs(dataset.inputs[..., 0] - deep / 257).max() <= 0.5


def test_images_of_12_bits_in_16_are_warned_of_once(tmp_path: Path) -> None:
    deep = np.random.default_rng(0).integers(0, 2**11, (12, 8, 9), np.uint16)
    deep[7, 0, 0] = 4095
    np.savez(tmp_path / "d.npz", images=deep, labels=np.arange(12) % 2)
    for i, pixels in enumerate(deep):
        file = tmp_path / "own" / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    told = (
        "the 16-bit images reach 4095 of 65535: scale them to the full range, or only 17 of 256"
        " greys are used"
    )
    for name in ("npz:d.npz", "folder:own"):
        assert datasets.load(name).inputs.max() == 16
        assert datasets.load(name).notes == (told,)
    deep[7, 0, 0] = 2**15
    np.savez(tmp_path / "d.npz", images=deep, labels=np.arange(12) % 2)
    datasets.load.cache_clear()
    assert datasets.load("npz:d.npz").inputs.max() == 128
    assert not datasets.load("npz:d.npz").notes


@pytest.mark.slow
def test_datasets_of_a_known_size_are_resized() -> None:
    e = from_flat({"image-size": 48})
    assert DataSetup(e).task.shape == (3, 48, 48)
    assert not list(datasets.cache.cache_root().glob("*")), "the name tells the shape"
    dataset = datasets.load("digits", Reading.of(e, ""))
    assert (dataset.shape, dataset.resized, dataset.mean) == ((3, 48, 48), 1797, None)
    oblong = DataSetup(from_flat({"input-shape": "3x16x24"})).dataset
    assert (oblong.shape, oblong.resized) == ((3, 16, 24), 1797)
    with pytest.raises(UserError, match="input-shape is 1x32x32; allowed: auto, or 3x32x32"):
        _ = DataSetup(from_flat({"input-shape": "1x32x32"})).partition
    ours = Image.fromarray(datasets.load("digits").inputs[5]).resize(
        (48, 48), Image.Resampling.BILINEAR
    )
    assert np.array_equal(dataset.inputs[5], np.asarray(ours))
    assert datasets.load("digits", Reading(size=(32, 32))).mean == datasets.load("digits").mean


def test_a_nodes_own_images_are_brought_to_the_federations_shape(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(20):
            Image.effect_noise((30 + i, 40), 50).convert("RGB").save(
                tmp_path / "own" / name / f"{i}.png"
            )
    node = {"dataset": "folder:own"}
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "cats").symlink_to(tmp_path / "own" / "cats")
    sized = Reading(size=(24, 16))
    with pytest.raises(UserError, match="expected at least two class folders"):
        datasets.load("folder:alone", sized)
    assert datasets.load("folder:alone", replace(sized, one_class=True)).class_names == ("cats",)
    added = Image.effect_noise((30, 40), 50).convert("RGB")
    added.save(tmp_path / "own" / "cats" / "20.png")
    found = datasets.load.__wrapped__("folder:alone", replace(sized, one_class=True))
    assert len(found.labels) == 21, "a class's folder that is a link is looked into, too"
    (tmp_path / "own" / "cats" / "20.png").unlink()
    site = Site.find(from_flat({"classes": 3, "input-shape": "1x24x16"}), 0, node)
    assert (site.dataset.shape, site.task.classes, site.fingerprint) == ((1, 24, 16), 3, "own")
    own = site.dataset.inputs[site.split.train] / 255
    assert np.allclose((site.mean, site.std), [[own.mean()], [own.std()]]), (
        "its own training part's"
    )
    few = from_flat({"classes": 3, "input-shape": "1x24x16", "partition.samples-per-client": 4})
    assert len(Site.find(few, 0, node).split.train) == 4, "a node's own data, too"
    np.savez(
        tmp_path / "a.npz", images=np.zeros((40, 32, 32, 3), np.uint8), labels=np.arange(40) % 2
    )
    with pytest.raises(
        UserError,
        match=(r"a\.npz' holds images of 3x32x32, the Experiment says vectors of 13$"),
    ):
        Site.find(from_flat({"classes": 2, "input-shape": "13"}), 0, {"dataset": "npz:a.npz"})


@pytest.mark.slow
def test_a_hugging_face_dataset_that_was_saved(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    features = hf.Features(
        {
            "picture": hf.Image(),
            "kind": hf.ClassLabel(names=["b", "a", "c"]),
            "who": hf.Value("string"),
        }
    )
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 24, 3), np.uint8)
    rows = {
        "picture": [Image.fromarray(p) for p in pixels],
        "kind": [i % 3 for i in range(30)],
        "who": [f"w{i // 15}" for i in range(30)],
    }
    whole = hf.Dataset.from_dict(rows, features=features)
    parts = {"train": whole.select(range(18)), "test": whole.select(range(18, 30))}
    hf.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files").mkdir()
    for name, part in parts.items():
        part.to_parquet(str(tmp_path / "files" / f"{name}-00000-of-00001.parquet"))
    for name in ("hf:saved", "hf:files"):
        dataset = datasets.load(name, Reading(client_column="who"))
        assert dataset.class_names == ("b", "a", "c")
        assert np.array_equal(dataset.inputs, pixels), "the train split, then the test split"
        assert np.array_equal(dataset.labels, rows["kind"])
        assert dataset.owners.tolist() == rows["who"]
    assert datasets.load("hf:files", Reading(size=(8, 8))).resized == 30
    with pytest.raises(UserError, match=r"data\.class-names is a, b; allowed: auto, or b, a, c"):
        datasets.load("hf:saved", Reading(class_names=("a", "b")))


def test_the_clients_column_is_neither_label_nor_input(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    features = hf.Features(
        {
            "a": hf.Value("float32"),
            "writer": hf.ClassLabel(names=["w0", "w1", "w2"]),
            "label": hf.Value("int64"),
        }
    )
    rows = {
        "a": [*range(30)],
        "writer": [i // 10 for i in range(30)],
        "label": [i % 2 for i in range(30)],
    }
    hf.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "written"))
    dataset = datasets.load("hf:written", Reading(client_column="writer"))
    assert (dataset.class_names, dataset.feature_names) == (("0", "1"), ("a",))
    assert dataset.owners is not None
    assert dataset.owners.tolist() == rows["writer"]
    with pytest.raises(
        UserError, match=r"column 'writer' is the label, and data\.client-column, too"
    ):
        datasets.load("hf:written", Reading(label_column="writer", client_column="writer"))


def test_splits_without_labels_are_left_out(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    features = hf.Features({"a": hf.Value("float32"), "label": hf.ClassLabel(names=["x", "y"])})
    labels = {"train": [0, 1, 1], "hidden": [-1, -1], "test": [1, 0]}
    parts = {
        name: hf.Dataset.from_dict({"a": [*range(len(own))], "label": own}, features=features)
        for name, own in labels.items()
    }
    hf.DatasetDict(parts).save_to_disk(str(tmp_path / "hidden"))
    assert datasets.load("hf:hidden").labels.tolist() == [0, 1, 1, 1, 0]
    assert datasets.load("hf:hidden").notes == (
        "left out: 1 split in which no row has a label: hidden",
    )
    parts["hidden"].save_to_disk(str(tmp_path / "alone"))
    with pytest.raises(UserError, match="labels go from -1 to -1"):
        datasets.load("hf:alone")


def test_numbers_from_2_to_the_63_and_the_row_index_of_pandas(tmp_path: Path) -> None:
    numbers = pa.array([2**63 + 1, 5] * 10, pa.uint64())
    rows = {"a": [*range(20)], "id": numbers, "label": numbers, "__index_level_0__": [*range(20)]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    dataset = datasets.load("parquet:t.parquet", Reading(client_column="id"))
    assert (dataset.feature_names, set(dataset.class_names)) == (("a",), {"5", str(2**63 + 1)})
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [str(2**63 + 1), "5"] * 10


def test_a_parquet_folder_of_bare_bytes_and_columns_of_arrays(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    images = [{"bytes": made.picture(), "path": None} for _ in range(12)]
    (tmp_path / "bare").mkdir()
    pq.write_table(
        pa.table({"image": images, "label": ["x", "y"] * 6}), tmp_path / "bare" / "train.parquet"
    )
    assert datasets.load("hf:bare").shape == (3, 64, 64)
    series = np.random.default_rng(0).normal(size=(12, 2, 5)).astype("f4")
    features = hf.Features(
        {
            "signal": hf.Array2D((2, 5), "float32"),
            "age": hf.Value("int64"),
            "label": hf.Value("int64"),
        }
    )
    rows = {"signal": series.tolist(), "age": [*range(12)], "label": [3, 5] * 6}
    hf.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "series"))
    dataset = datasets.load("hf:series")
    assert np.array_equal(dataset.inputs, series)
    assert dataset.class_names == ("3", "5")


def test_a_function_gives_arrays_or_takes_the_data_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.own_code(tmp_path)
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    plain = datasets.load("own_data:right")
    assert (plain.kind, plain.shape, plain.class_names, plain.owners) == (
        VECTORS,
        (4,),
        ("a", "b", "c", "d"),
        None,
    )
    e = from_flat({"dataset": "own_data:with_path", "clients": 2, "partition.kind": "natural"})
    partition = DataSetup(e).partition
    assert partition.owners == ("0", "1")
    assert not list(datasets.cache.cache_root().glob("*")), "what a function gives may change"
    monkeypatch.delitem(sys.modules, "own_data")


@pytest.mark.parametrize("packed", [False, True])
def test_a_csv_of_other_marks_is_read_as_the_plain_one(packed: bool, tmp_path: Path) -> None:
    rows = [(i, i + 0.25, "xy"[i % 2]) for i in range(40)]
    plain = "".join(f"{a},{b},{label}\n" for a, b, label in rows)
    other = "".join(f"{a};{str(b).replace('.', ',')};{label}\n" for a, b, label in rows)
    (tmp_path / "plain.csv").write_text(f"a,b,label\n{plain}")
    text, name = f"a;b;label\n{other}".encode(), "other.csv"
    if packed:
        text, name = gzip.compress(text), "other.csv.gz"
    (tmp_path / name).write_bytes(text)
    e = from_flat({"data.sep": "semicolon", "data.decimal": "comma"})
    one = datasets.load(f"csv:{tmp_path}/plain.csv")
    two = datasets.load(f"csv:{tmp_path}/{name}", Reading.of(e, ""))
    assert one.feature_names == two.feature_names == ("a", "b")
    assert np.array_equal(one.inputs, two.inputs)
    assert np.array_equal(one.labels, two.labels)


@pytest.mark.parametrize(("zeros", "end"), [(False, ""), (True, ""), (False, ".0")])
def test_labels_and_owners_that_begin_with_a_zero_are_texts(
    zeros: bool, end: str, tmp_path: Path
) -> None:
    """As integers 007 and 7 would be one owner. Whole numbers are integers, as 1.0 of pandas."""
    owners = ["007", "7", "10"] if zeros else ["8", "7", "10"]
    rows = [f"00{i},{owners[i % 3]}{end},{'0' * zeros}{i % 2 + 1}{end}\n" for i in range(60)]
    (tmp_path / "t.csv").write_text("zip,site,label\n" + "".join(rows))
    keys = {"dataset": f"csv:{tmp_path}/t.csv", "data.client-column": "site", "clients": 3}
    e = from_flat(keys | {"partition.kind": "natural"})
    setup = DataSetup(e)
    data, partition = setup.dataset, setup.partition
    assert partition.owners == (("007", "10", "7") if zeros else ("7", "8", "10"))
    assert data.class_names == (("01", "02") if zeros else ("1", "2"))
    assert data.feature_names == ("zip",)
    assert [*data.inputs[:3, 0]] == [0, 1, 2], "a feature is a number"
    (tmp_path / "missing.csv").write_text("a,site,label\n1, 07,1\n2,NA,2\n")
    with pytest.raises(UserError, match="column 'site' has no value in row 2"):
        datasets.load(f"csv:{tmp_path}/missing.csv", Reading.of(e, ""))
    (tmp_path / "twice.csv").write_text("a,site,label,label\n1,1,1,1\n2,2,2,2\n")
    with pytest.raises(UserError, match="it has 2 columns 'label'"):
        datasets.load(f"csv:{tmp_path}/twice.csv", Reading.of(e, ""))


@pytest.mark.slow
def test_names_that_are_nearly_equal_and_rows_that_stand_twice_are_told(tmp_path: Path) -> None:
    labels = ["b"] * 20 + ["type one", " Type  One", "rare"]
    once = [f"{i},{'p' if i % 2 else 'P '},{label}\n" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("a,site,label\n" + "".join(once + once))
    keys = {"dataset": f"csv:{tmp_path}/t.csv", "data.client-column": "site", "clients": 1}
    told = "\n".join(DataSetup(from_flat(keys | {"partition.kind": "iid"})).remarks)
    assert "classes that look alike: ' Type  One', 'type one'" in told
    assert "owners that look alike: 'P ', 'p'" in told
    assert re.search(r"[1-4] of 4 test rows stand in the same client's training part, too", told)
    assert "these classes have fewer than 3 rows, and so none in some part of the data: " in told
    e = from_flat({"dataset": "digits"})
    assert not [*DataSetup(e).remarks]
