"""A client's private tensors on disk: one safetensors file per version, tagged with its round."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import from_json, tensors_sha256, write_atomically
from pfedlora_flwr.runs.checkpoint import Counts

logger = logging.getLogger(__name__)
ABOUT, CHOSEN = "about.json", "best"
_ABOUT = ("experiment", "class_names", "mean", "std", "versions")


class ClientStore:
    """The versions of one client's model in one folder. Version 0 is the initial model, which is
    never written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"

    def versions(self) -> list[int]:
        """The rounds whose versions are on disk, ascending."""
        return sorted(
            int(p.stem.removeprefix("round-")) for p in self.folder.glob("round-*.safetensors")
        )

    def load(self, version: int) -> dict[str, Tensor] | None:
        """The tensors of `version`, or None (with a warning) when the file is missing or damaged.
        Raises OSError when it cannot be read."""
        try:
            return self.read(version)
        except UserError as error:
            logger.warning("%s", error)
            return None

    def read(self, version: int) -> dict[str, Tensor]:
        """The tensors of `version`. Raises UserError when the file is missing or damaged, OSError
        when it cannot be read."""
        return read_tensors(self.path(version))[0]

    def fault(self, version: int, sha256: str | None) -> str:
        """Why `version` cannot be used, if so. sha256: of its tensors, where that is known."""
        path = self.path(version)
        try:
            _, metadata = read_tensors(path)
        except (UserError, OSError) as error:
            return str(error)
        same = not sha256 or metadata["sha256"] == sha256
        return "" if same else f"{path} is not the one that the server knows"

    def counts(self, version: int) -> Counts | None:
        """What the evaluation of `version` counted, as it was saved with it; None where there was
        none."""
        found = from_json(self._metadata(version)["counts"])
        return Counts.of(found) if found else None

    def base(self, version: int) -> str:
        """The frozen base that `version` was trained on (`models/kept.py`); empty where it has
        none."""
        return self._metadata(version).get("base", "")

    def data(self, version: int) -> str:
        """What the site's own data was known by that `version` was trained on; empty for a part of
        a shared dataset, and in older versions' files."""
        return self._metadata(version).get("data", "")

    def _metadata(self, version: int) -> dict[str, str]:
        with safetensors.safe_open(self.path(version), "pt") as stored:
            return stored.metadata() or {}

    def save(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        admitted: int,
        counts: Counts | None = None,
        base: str = "",
        keep: Sequence[int] | None = None,
        data: str = "",
    ) -> str:
        """Writes `version`, with what its evaluation counted and the names of its base and of the
        site's own data, and returns the tensors' SHA-256.

        Keeps `admitted` (the version the server named), the one before it, the new one and those
        of `keep`, and removes the others: whichever of its last two checkpoints the server returns
        to, its version is here. Later ones stay, too: this visit may be late, after the next."""
        self.folder.mkdir(parents=True, exist_ok=True)
        counted = json.dumps(asdict(counts) if counts else None)
        names = {"base": base, "data": data}
        told = {"round": str(version), "counts": counted} | {k: v for k, v in names.items() if v}
        digest = write_tensors(self.path(version), tensors, **told)
        (self.folder / CHOSEN).unlink(missing_ok=True)
        held = self.versions()
        before, after = [v for v in held if v < admitted], [v for v in held if v > version]
        self.keep(version, admitted, *before[-1:], *after, *(keep or ()))
        return digest

    def choose(self, version: int) -> None:
        """Says that this version is the best round's, until another one is saved."""
        write_atomically(self.folder / CHOSEN, str(version).encode())

    @property
    def chosen(self) -> int | None:
        """What `choose` said."""
        file = self.folder / CHOSEN
        return int(file.read_text()) if file.exists() else None

    def write_about(
        self, rounds: int, site: Mapping[str, Any], about: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Writes what it takes to use the models away from their run (see `trained.py`): once, and
        again when it got more `rounds`, or its `site` other settings."""
        with contextlib.suppress(UserError):
            found = self.about()
            if (found["experiment"]["rounds"], found.get("site")) == (rounds, site):
                return
        write_atomically(self.folder / ABOUT, (json.dumps(about(), indent=1) + "\n").encode())

    def about(self) -> dict[str, Any]:
        """What `write_about` wrote. Raises UserError when it is missing or damaged."""
        path = self.folder / ABOUT
        try:
            found = from_json(path.read_text())
            lacks = [name for name in _ABOUT if name not in found]
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{path} cannot be read ({reason}), without which the model beside it is no use"
            ) from None
        if lacks:
            raise UserError(f"{path} lacks {', '.join(lacks)}")
        return found

    def keep(self, *versions: int) -> None:
        """Removes all versions but these."""
        for old in set(self.versions()) - set(versions):
            self.path(old).unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> str:
    """Writes the tensors with their order and SHA-256, which it returns."""
    digest = tensors_sha256(tensors)
    told = {"order": "\n".join(tensors), "sha256": digest, **metadata}
    write_atomically(path, safetensors.torch.save(dict(tensors), told))
    return digest


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote: the tensors and the metadata. Raises UserError when it is missing
    or damaged, OSError as it may."""
    try:
        with safetensors.safe_open(path, "pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {
                name: stored.get_tensor(name) for name in metadata["order"].split("\n") if name
            }
            expected = metadata["sha256"]
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except KeyError as error:
        raise UserError(f"{path} cannot be read: its metadata have no {error}") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if tensors_sha256(tensors) != expected:
        raise UserError(f"{path} is damaged: its checksum differs")
    return tensors, metadata
