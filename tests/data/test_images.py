"""Folders of images: what is read of them, what is left out, and how this is said."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.images import read_image
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops import read_inputs
from pfedlora_flwr.training.kinds import IMAGES
from tests.conftest import Call, result_of

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)


def folder(root: Path, *names: str, count: int = 10) -> Path:
    """Two classes of `count` PNG images, and in the first files of these names too."""
    for name in "ab":
        for i in range(count):
            save(root / name / f"{i}.png")
    for name in names:
        file = root / "a" / name
        if file.suffix.lower() in IMAGES.suffixes:
            save(file)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("…")
    return root


def save(file: Path, pixels: np.ndarray = PIXELS, **how: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, **how)
    return file


def test_every_suffix_is_read_in_training_prediction_and_evaluation_alike(tmp_path: Path) -> None:
    others = [f"x{suffix}" for suffix in IMAGES.suffixes] + ["y.TIFF"]
    own = folder(tmp_path / "own", *others)
    dataset = datasets.load(f"folder:{own}")
    assert (len(dataset.labels), dataset.notes) == (20 + len(others), ())
    asked = read_inputs.read([own / "a", own / "b"], Task(2, (3, 8, 12)), ())
    assert np.array_equal(asked.inputs, dataset.inputs)
    assert (asked.notes, asked.broken) == ([], [])
    for exact in (".png", ".bmp", ".tif", ".tiff"):
        assert np.array_equal(read_image(own / "a" / f"x{exact}", (8, 12))[0], PIXELS)


def test_what_a_folder_leaves_out_is_counted_in_one_line(tmp_path: Path) -> None:
    others = ["a.txt", "b.TXT", "none", "deep/1.png", "deep/er/2.webp", "deep/c.txt"]
    hidden = ["._0.png", ".DS_Store", ".thumbs/3.png"]
    own = folder(tmp_path / "own", *others, *hidden)
    (own / "labels.csv").write_text("…")
    (own / ".git").mkdir()
    dataset = datasets.load(f"folder:{own}")
    deep = "2 in sub-folders (data.subfolders=true takes them)"
    assert dataset.notes == (f"left out: 3 .txt, {deep}, 1 .csv, 1 without a suffix",)
    assert len(dataset.labels) == 20
    e = from_flat({"dataset": f"folder:{own}", "data.subfolders": True})
    dataset = datasets.load(e.dataset, Reading.of(e, ""))
    assert np.bincount(dataset.labels).tolist() == [12, 10]
    assert dataset.notes == ("left out: 3 .txt, 1 .csv, 1 without a suffix",)


def test_a_folder_that_holds_images_in_sub_folders_alone_says_so(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / "own" / name / "patient1" / "0.png")
    with pytest.raises(UserError, match=r"; there: 2 in sub-folders \(data.subfolders=true"):
        datasets.load(f"folder:{tmp_path}/own")


def test_of_several_frames_the_first_is_taken_and_said(tmp_path: Path) -> None:
    own = folder(tmp_path / "own")
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "blue")]
    for i in range(2):
        frames[0].save(own / "a" / f"m{i}.gif", save_all=True, append_images=frames[1:])
    told = "files with several frames, of which the first is taken: 2"
    dataset = datasets.load(f"folder:{own}")
    assert dataset.notes == (told,)
    assert dataset.inputs[10, 0, 0].tolist() == [255, 0, 0]
    assert read_inputs.read([own], Task(2, (3, 8, 12)), ()).notes == [told]
    frames[0].save(own / "a" / "m.tif", save_all=True, append_images=frames[1:])
    datasets.load.cache_clear()
    with pytest.raises(UserError, match=r"m\.tif: it has 2 pages; expected one a file"):
        datasets.load(f"folder:{own}")
    assert read_inputs.read([own / "a" / "m.tif"], Task(2, (3, 8, 12)), ()).broken == [
        f"{own}/a/m.tif: it has 2 pages; expected one a file"
    ]


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tif"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_turned_as_their_exif_says(suffix: str, turn: int, tmp_path: Path) -> None:
    """`upright` is the plain definition of the eight orientations."""
    upright = {
        1: PIXELS,
        2: PIXELS[:, ::-1],
        3: PIXELS[::-1, ::-1],
        4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2),
        6: np.rot90(PIXELS, -1),
        7: PIXELS[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(PIXELS),
    }[turn]
    exif = Image.Exif()
    exif[0x0112] = turn
    lossless = {"lossless": True} if suffix == "webp" else {}
    how = {"quality": 100, "subsampling": 0} if suffix == "jpg" else lossless
    for name in "ab":
        save(tmp_path / "own" / name / f"0.{suffix}", exif=exif, **how)
    found = datasets.load(f"folder:{tmp_path}/own").inputs
    assert found.shape[1:] == upright.shape
    assert np.abs(found[0].astype(int) - upright).max() <= (8 if suffix == "jpg" else 0)
    read = read_image(tmp_path / "own" / "a" / f"0.{suffix}", upright.shape[:2])[0]
    assert np.array_equal(read, found[0])


def test_exif_that_cannot_be_read_turns_nothing(tmp_path: Path) -> None:
    file = save(tmp_path / "a.jpg", exif=b"Exif\0\0no TIFF at all")
    assert read_image(file, (8, 12))[0].shape == (8, 12, 3)


def test_an_animation_that_is_cut_off_is_no_readable_image(tmp_path: Path) -> None:
    frames = [Image.effect_noise((20, 20), 50 + i).convert("P") for i in range(3)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    whole = (tmp_path / "a.gif").read_bytes()
    for length in range(len(whole) // 2, len(whole), 7):
        (tmp_path / "a.gif").write_bytes(whole[:length])
        with suppress(UserError):  # and nothing else
            read_image(tmp_path / "a.gif", (8, 8))


def test_pixels_of_more_than_16_bits_are_refused(tmp_path: Path) -> None:
    for name, pixels in (
        ("f.tif", np.zeros((8, 8), np.float32)),
        ("i.tif", np.full((8, 8), 2**20)),
    ):
        Image.fromarray(pixels.astype(np.float32 if name == "f.tif" else np.int32)).save(
            tmp_path / name
        )
        with pytest.raises(UserError, match=r"its pixels go from .*; expected 8 or 16 bits"):
            read_image(tmp_path / name, (8, 8))


def test_owners_that_are_too_small_to_be_clients_are_counted(tmp_path: Path) -> None:
    owners = ["x"] * 20 + ["y"] * 20 + ["few"] * 3 + ["one"]
    rows = "".join(f"{i / 2},{owner},{'pq'[i % 2]}\n" for i, owner in enumerate(owners))
    (tmp_path / "t.csv").write_text(f"a,site,label\n{rows}")
    keys = {"dataset": f"csv:{tmp_path}/t.csv", "clients": 2, "partition.kind": "natural"}
    e = from_flat(keys | {"data.client-column": "site"})
    assert [*DataSetup(e).remarks] == [
        "left out: 4 rows of 2 owners that have fewer than partition.min-samples"
    ]


@pytest.mark.slow
def test_run_dry_run_comparison_result_and_client_say_what_was_left_out(
    pfedlora: Call, tmp_path: Path
) -> None:
    folder(tmp_path / "own", "a.txt", "deep/1.png")
    told = "left out: 1 .txt, 1 in sub-folders (data.subfolders=true takes them)"
    keys = ["clients=2", "partition.kind=iid", "models=tests.methods.narrow:Narrow", "rounds=1"]
    words = [w for key in (*keys, "dataset=folder:own", "image-size=32") for w in ("-o", key)]
    for more in (["--dry-run"], ["--dry-run"], ["--engine", "local", "-o", "output=run"]):
        code, out, err = pfedlora("run", *words, *more)
        assert (code, out.count(f"warning: {told}\n")) == (0, 1), (out, err)
    assert told in result_of(tmp_path / "run")["data_notes"]
    [about, _] = (tmp_path / "run").rglob("about.json")
    assert json.loads(about.read_text())["data_notes"] == [told]
    code, _, err = pfedlora("predict", "run", "--client", "0", "own")
    assert (code, err) == (0, "note: own: left out: 1 .txt\n")
