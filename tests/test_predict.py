"""A trained client's model put to use: from the run's directory and from where a deployed node keeps it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedlora_flwr.commands.predict import predict
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.images import read_image
from pfedlora_flwr.data.local import shared_partition
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Cli, Done
from tests.federation.malice import simulate

pytestmark = pytest.mark.slow
CLIENT = 1


@pytest.fixture(scope="module")
def pictures(trained_run: Done, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, int]]:
    """The client's own test images as PNG files, with their labels."""
    folder = tmp_path_factory.mktemp("pictures")
    dataset, partition = shared_partition(RunDirectory(trained_run.output).experiment())
    found = []
    for i in partition.clients[CLIENT].test:
        Image.fromarray(np.asarray(dataset.images[i])).save(folder / f"{i}.png")
        found.append((folder / f"{i}.png", int(dataset.labels[i])))
    return found


def test_predict_gives_the_classes_that_the_evaluation_counted(
    trained_run: Done, shared_cli: Cli, pictures: list[tuple[Path, int]]
) -> None:
    files = [str(path) for path, _ in pictures]
    done = shared_cli("predict", str(trained_run.output), "--client", str(CLIENT), *files)
    assert done.code == 0, done.stderr
    lines = [re.match(r"(.*): (\d) (\d\.\d{4}), \d \d\.\d{4}, \d \d\.\d{4}, …$", line) for line in done.stdout.splitlines()]
    assert [line and line[1] for line in lines] == files
    correct = sum(bool(line) and int(line[2]) == label for line, (_, label) in zip(lines, pictures, strict=True))
    row = trained_run.result["per_client"][str(CLIENT)]
    assert len(pictures) == row["test"]
    assert correct / len(pictures) == row["accuracy"] > 0.2


def test_probabilities_of_all_classes_sum_to_one_in_descending_order(trained_run: Done, pictures: list[tuple[Path, int]]) -> None:
    [said] = predict(load_trained(trained_run.output, CLIENT), [pictures[0][0]])
    probabilities = [p for _, p in said.classes]
    assert sorted(name for name, _ in said.classes) == [str(i) for i in range(10)]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1.0)


def test_images_of_any_size_and_mode(trained_run: Done, tmp_path: Path) -> None:
    trained = load_trained(trained_run.output, CLIENT)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 120, 3), dtype=np.uint8))
    image.convert("L").save(tmp_path / "grey.jpeg")
    image.convert("RGBA").save(tmp_path / "alpha.png")
    image.convert("P").save(tmp_path / "palette.png")
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    files = sorted(tmp_path.iterdir())
    (tmp_path / "plain").mkdir()
    for file in files:
        Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR).save(tmp_path / "plain" / f"{file.stem}.png")
    said = [p.classes for p in predict(trained, files)]
    assert said == [p.classes for p in predict(trained, [tmp_path / "plain" / f"{file.stem}.png" for file in files])]
    assert len(set(said)) == 4
    grey = np.random.default_rng(0).integers(0, 256, (32, 32))
    Image.fromarray(grey.astype(np.uint8)).save(tmp_path / "8-bit.png")
    Image.fromarray((257 * grey).astype(np.uint16)).save(tmp_path / "16-bit.png")
    assert np.array_equal(*(read_image(tmp_path / f"{bits}-bit.png") for bits in (8, 16)))


def test_a_federation_with_more_classes_than_the_clients_data(tmp_path: Path) -> None:
    output = simulate(tmp_path, clients=2, rounds=1, classes=12)
    trained = load_trained(output, 0)
    assert trained.class_names == [*map(str, range(10)), "class 10", "class 11"]
    assert trained.logits(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 12)


def test_on_a_deployed_node_it_is_found_under_the_state_path(trained_run: Done, tmp_path: Path, pictures: list[tuple[Path, int]]) -> None:
    token = (trained_run.output / "server" / "token").read_text().strip()
    shutil.copytree(trained_run.output / "clients" / str(CLIENT), tmp_path / token / str(CLIENT))
    here = predict(load_trained(trained_run.output, CLIENT), [path for path, _ in pictures])
    for place in (tmp_path, tmp_path / token):
        node = load_trained(place, CLIENT)
        assert predict(node, [path for path, _ in pictures]) == here
        assert node.counts.accuracy("test") == trained_run.result["per_client"][str(CLIENT)]["accuracy"]
    newest = tmp_path / token / str(CLIENT) / "round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert load_trained(tmp_path, CLIENT).version == 2, "a damaged version is passed over"
    shutil.copytree(tmp_path / token, tmp_path / "another")
    with pytest.raises(UserError, match="from several runs; give one of"):
        load_trained(tmp_path, CLIENT)


def test_tensorboard_event_files_hold_every_round(trained_run: Done) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(trained_run.output / "events")).Reload()
    rows = trained_run.rows("rounds.jsonl")
    written = [(event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy/test")]
    assert written == [(row["round"], row["accuracy"]) for row in rows]
    assert [event.value for event in events.Scalars("communication/parameters_up")] == [row["parameters_up"] for row in rows]


def test_tensorboard_missing_is_one_clear_line(shared_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tensorboard.py").write_text("raise ImportError('no tensorboard')\n")
    cli = Cli(tmp_path, shared_cli.environment["PFEDLORA_TEST"])
    cli.environment["PYTHONPATH"] = f"{tmp_path}:{cli.environment['PYTHONPATH']}"
    done = cli.run("never", "--tensorboard")
    assert done.code == 2
    assert done.stderr == "error: --tensorboard needs TensorBoard, which is not installed: pip install tensorboard\n"
    assert not done.output.exists()


def test_what_a_client_leaves_beside_its_model(trained_run: Done) -> None:
    about = json.loads((trained_run.output / "clients" / "0" / "about.json").read_text())
    assert about["class_names"] == [str(i) for i in range(10)]
    assert about["classes"] == 10
    assert len(about["mean"]) == len(about["std"]) == 3
    assert from_flat(about["experiment"]).rounds == 3
