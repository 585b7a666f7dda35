"""A trained client's model put to use: from the run's directory and from where a deployed node
keeps it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import softmax
from sklearn.metrics import log_loss

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.images import read_image
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops.predict import Prediction, predict
from pfedlora_flwr.ops.read_inputs import Place, read
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import Trained, load_trained
from tests.conftest import Call, Done
from tests.federation.malice import simulate

pytestmark = pytest.mark.slow
CLIENT = 1


@pytest.fixture(scope="module")
def pictures(trained_run: Done, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, int]]:
    """The client's own test images as PNG files, with their labels."""
    folder = tmp_path_factory.mktemp("pictures")
    setup = DataSetup(RunDirectory(trained_run.output).experiment())
    dataset, partition = setup.dataset, setup.partition
    found = []
    for i in partition.clients[CLIENT].test:
        Image.fromarray(np.asarray(dataset.inputs[i])).save(folder / f"{i}.png")
        found.append((folder / f"{i}.png", int(dataset.labels[i])))
    return found


def asked(trained: Trained, paths: list[Path]) -> list[Prediction]:
    """What `predict` makes of image files."""
    inputs = read(paths, trained.task, trained.feature_names)
    assert (inputs.places, inputs.broken) == ([Place(path) for path in paths], [])
    return predict([trained], inputs)


def test_predict_gives_the_classes_that_the_evaluation_counted(
    trained_run: Done, pfedlora: Call, pictures: list[tuple[Path, int]]
) -> None:
    files = [str(path) for path, _ in pictures]
    code, out, err = pfedlora("predict", str(trained_run.output), "--client", str(CLIENT), *files)
    assert (code, err) == (0, "")
    lines = [
        re.match(r"(.*): (\d) (\d\.\d{4}), \d \d\.\d{4}, \d \d\.\d{4}, …$", line)
        for line in out.splitlines()
    ]
    assert [line and line[1] for line in lines] == files
    correct = sum(
        bool(line) and int(line[2]) == label
        for line, (_, label) in zip(lines, pictures, strict=True)
    )
    row = trained_run.result["per_client"][str(CLIENT)]
    assert len(pictures) == row["test"]
    assert correct / len(pictures) == row["accuracy"] > 0.2


def test_probabilities_of_all_classes_sum_to_one_in_descending_order(
    trained_run: Done, pictures: list[tuple[Path, int]]
) -> None:
    [said] = asked(load_trained(trained_run.output, CLIENT), [pictures[0][0]])
    probabilities = [p for _, p in said.classes]
    assert sorted(name for name, _ in said.classes) == [str(i) for i in range(10)]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1.0)


def test_calibrated_probabilities_are_those_with_the_best_temperature(
    trained_run: Done, pfedlora: Call, pictures: list[tuple[Path, int]]
) -> None:
    trained, files = load_trained(trained_run.output, CLIENT), [str(pictures[0][0])]
    setup = DataSetup(trained.experiment)
    dataset, held = setup.dataset, setup.partition.clients[CLIENT].validation
    logits, y = trained.logits(dataset.inputs[held]).numpy(), dataset.labels[held]
    grid = np.geomspace(0.05, 20, 800)
    best = grid[np.argmin([log_loss(y, softmax(logits / t, 1), labels=range(10)) for t in grid])]
    call = ["predict", str(trained_run.output), "--client", str(CLIENT), *files, "--json"]
    _, plain, _ = pfedlora(*call, "--top", "10")
    code, out, err = pfedlora(*call, "--top", "10", "--calibrated")
    assert code == 0
    told = re.search(r"outputs are divided by ([\d.]+), from (\d+) validation samples", err)
    assert told
    assert float(told[1]) == pytest.approx(best, rel=0.01)
    assert int(told[2]) == len(held)
    was, now = (
        np.array([c["probability"] for c in json.loads(text)[0]["classes"]])
        for text in (plain, out)
    )
    t = float(np.log(was[0] / was[5]) / np.log(now[0] / now[5]))
    assert t == pytest.approx(best, rel=0.01)


def test_images_of_any_size_and_mode(trained_run: Done, tmp_path: Path) -> None:
    trained = load_trained(trained_run.output, CLIENT)
    image = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (200, 120, 3), dtype=np.uint8)
    )
    image.convert("L").save(tmp_path / "grey.jpeg")
    image.convert("RGBA").save(tmp_path / "alpha.png")
    image.convert("P").save(tmp_path / "palette.png")
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    files = sorted(tmp_path.iterdir())
    (tmp_path / "plain").mkdir()
    for file in files:
        Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR).save(
            tmp_path / "plain" / f"{file.stem}.png"
        )
    said = [p.classes for p in asked(trained, files)]
    assert said == [
        p.classes
        for p in asked(trained, [tmp_path / "plain" / f"{file.stem}.png" for file in files])
    ]
    assert len(set(said)) == 4
    grey = np.random.default_rng(0).integers(0, 256, (32, 32))
    Image.fromarray(grey.astype(np.uint8)).save(tmp_path / "8-bit.png")
    Image.fromarray((257 * grey).astype(np.uint16)).save(tmp_path / "16-bit.png")
    assert np.array_equal(
        *(read_image(tmp_path / f"{bits}-bit.png", (32, 32))[0] for bits in (8, 16))
    )


def test_a_federation_with_more_classes_than_the_clients_data(tmp_path: Path) -> None:
    output = simulate(tmp_path, clients=2, rounds=1, classes=12)
    trained = load_trained(output, 0)
    assert trained.class_names == [*map(str, range(10)), "class 10", "class 11"]
    assert trained.logits(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 12)


def test_on_a_deployed_node_it_is_found_under_the_state_path(
    trained_run: Done, tmp_path: Path, pictures: list[tuple[Path, int]]
) -> None:
    token = (trained_run.output / "server" / "token").read_text().strip()
    shutil.copytree(trained_run.output / "clients" / str(CLIENT), tmp_path / token / str(CLIENT))
    here = asked(load_trained(trained_run.output, CLIENT), [path for path, _ in pictures])
    for place in (tmp_path, tmp_path / token):
        node = load_trained(place, CLIENT)
        assert asked(node, [path for path, _ in pictures]) == here
        assert (
            node.counts.accuracy("test")
            == trained_run.result["per_client"][str(CLIENT)]["accuracy"]
        )
    newest = tmp_path / token / str(CLIENT) / "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert load_trained(tmp_path, CLIENT).version == 2, "a damaged version is passed over"
    shutil.copytree(tmp_path / token, tmp_path / "another")
    with pytest.raises(UserError, match="from several runs; give one of"):
        load_trained(tmp_path, CLIENT)


def test_a_folder_as_json_and_csv_with_the_classes_that_are_wanted(
    trained_run: Done, pfedlora: Call, pictures: list[tuple[Path, int]], tmp_path: Path
) -> None:
    folder, run = tmp_path / "shown", str(trained_run.output)
    for (path, _), to in zip(
        pictures, ("b/2.png", "a/1.PNG", "c.jpeg", ".hidden/x.png", "a/.x.png"), strict=False
    ):
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(folder / to)
    (folder / "notes.txt").write_text("no image")
    files = ["shown/a/1.PNG", "shown/b/2.png", "shown/c.jpeg"]
    code, out, err = pfedlora("predict", run, "--all-clients", "shown", "--json", "--top", "2")
    assert (code, err) == (0, "note: shown: left out: 1 .txt\n")
    found = json.loads(out)
    assert [(row["client"], row["image"]) for row in found] == [
        (client, file) for client in range(3) for file in files
    ]
    assert {len(row["classes"]) for row in found} == {2}
    code, _, _ = pfedlora(
        "predict", run, "--all-clients", "shown", "--csv", "--top", "2", "--output", "new/seen.csv"
    )
    assert code == 0
    rows = list(csv.DictReader((tmp_path / "new" / "seen.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        "client",
        "image",
        "class_1",
        "probability_1",
        "class_2",
        "probability_2",
    ]
    assert [
        {"client": int(r["client"]), "image": r["image"]}
        | {
            "classes": [
                {"name": r[f"class_{i}"], "probability": float(r[f"probability_{i}"])}
                for i in (1, 2)
            ]
        }
        for r in rows
    ] == found
    code, out, _ = pfedlora("predict", run, "--all-clients", "shown/c.jpeg", "--top", "20")
    assert [
        re.match(r"client (\d), shown/c.jpeg: (\d \d\.\d{4}(, |$)){10}$", line)[1]
        for line in out.splitlines()
    ] == ["0", "1", "2"]
    code, _, err = pfedlora("predict", run, "--client", "0", "shown", "--output", "new/seen.csv")
    assert (code, err) == (
        2,
        "error: new/seen.csv exists; replace it with --overwrite, or give another output\n",
    )
    assert (
        pfedlora(
            "predict", run, "--client", "0", "shown", "--output", "new/seen.csv", "--overwrite"
        )[0]
        == 0
    )


def test_a_broken_image_among_many_is_named_and_the_others_are_predicted(
    trained_run: Done, pfedlora: Call, pictures: list[tuple[Path, int]], tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_text("no picture")
    (tmp_path / "empty").mkdir()
    shown = [str(pictures[0][0]), "broken.png", "empty", str(pictures[1][0])]
    code, out, err = pfedlora("predict", str(trained_run.output), "--client", "0", *shown)
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == [shown[0], shown[3]]
    assert err.splitlines() == [
        "error: broken.png: no readable image",
        "error: empty: no file of images (.png, .jpg, .jpeg, .webp, .bmp, .tif, .tiff, .gif)"
        " in this folder",
    ]


def test_a_model_that_diverged_says_so(trained_run: Done, pictures: list[tuple[Path, int]]) -> None:
    trained = load_trained(trained_run.output, CLIENT)
    torch.nn.init.constant_(next(trained.module.parameters()), torch.nan)
    with pytest.raises(UserError, match="the model of client 1 gives values that are not finite"):
        asked(trained, [pictures[0][0]])


def test_mistakes_are_one_clear_line(trained_run: Done, pfedlora: Call, tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("no picture")
    broken = tmp_path / "broken.png"
    Image.effect_noise((300, 300), 50).save(broken)
    whole = broken.read_bytes()
    second = whole.index(b"IDAT", whole.index(b"IDAT") + 4)
    broken.write_bytes(whole[: second - 4] + b"\xff" * 8 + whole[second + 4 :])
    for words, expected in (
        ((str(trained_run.output), "--client", "3", str(text)), "client is 3; allowed: 0 to 2"),
        ((str(trained_run.output), "--client", "0", str(text)), "no readable image"),
        ((str(trained_run.output), "--client", "0", str(broken)), "no readable image"),
        ((str(trained_run.output), "--client", "0", "nowhere.png"), "nowhere.png: no such file"),
        (
            (str(tmp_path), "--client", "0", str(text)),
            "holds neither a run nor a model of client 0",
        ),
        ((str(tmp_path), "--all-clients", str(text)), "holds no client's model"),
        ((str(tmp_path / "no"), "--all-clients", str(text)), "no is not a directory"),
        ((str(trained_run.output), str(text)), "give either --client K or --all-clients"),
        (
            (str(trained_run.output), "--client", "0", "--all-clients", str(text)),
            "give either --client K or --all-clients",
        ),
        (
            (str(trained_run.output), "--client", "0", "--json", "--csv", str(text)),
            "--json and --csv are both given",
        ),
    ):
        code, out, err = pfedlora("predict", *words)
        assert (code, out) == (2, "")
        assert expected in err
        assert len(err.splitlines()) == 1
    deployed = tmp_path / "deployed"
    shutil.copytree(trained_run.output, deployed, ignore=shutil.ignore_patterns("clients"))
    with pytest.raises(
        UserError, match=r"on a deployed node it is in <state-path>/[0-9a-f]+: run this there"
    ):
        load_trained(deployed, 0)


def test_tensorboard_event_files_hold_every_round(trained_run: Done) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(trained_run.output / "events")).Reload()
    rows = trained_run.rows("rounds.jsonl")
    written = [
        (event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy/test")
    ]
    assert written == [(row["round"], row["accuracy"]) for row in rows]
    assert [event.value for event in events.Scalars("communication/parameters_up")] == [
        row["parameters_up"] for row in rows
    ]


def test_tensorboard_missing_is_one_clear_line(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # Python then finds none
    code, _, err = pfedlora("run", "-o", "output=never", "-o", "observers=tensorboard")
    assert code == 2
    assert (
        err
        == "error: observers names tensorboard, which is not installed: pip install tensorboard\n"
    )
    assert not (tmp_path / "never").exists()


def test_what_a_client_leaves_beside_its_model(trained_run: Done) -> None:
    about = json.loads((trained_run.output / "clients" / "0" / "about.json").read_text())
    assert about["class_names"] == [str(i) for i in range(10)]
    assert about["classes"] == 10
    assert len(about["mean"]) == len(about["std"]) == 3
    assert from_flat(about["experiment"]).rounds == 3
