"""The uploads that a run keeps for an audit (`audit.uploads`): a folder per round with one file per
client, and the state at its start."""

from __future__ import annotations

import shutil
from pathlib import Path

from pfedlora_flwr.methods.method import ByClient, Tensors, Upload
from pfedlora_flwr.runs.store import read_tensors, write_tensors

UPLOADS = "uploads"
"""The folder in a run's directory, and on a node beside its model."""


class Uploads:
    """The rounds' folders in one folder, which is not there before the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, round: int, state: Tensors, uploads: ByClient, trained: int = 0) -> None:
        """Keeps a round's admitted uploads, by client, and the server's state before they were
        merged; on a node what it received, and how many samples it trained on."""
        self._round(round).mkdir(parents=True, exist_ok=True)
        write_tensors(self._state(round), state)
        for client, upload in uploads.items():
            told = {"samples": str(upload.samples), "trained": str(trained)}
            write_tensors(self._upload(round, client), upload.tensors, **told)

    def rounds(self) -> list[int]:
        """The rounds of which there are uploads, ascending."""
        return sorted(int(path.name.removeprefix("round-")) for path in self.folder.glob("round-*"))

    def clients(self, round: int) -> list[int]:
        """Whose there are of a round, ascending."""
        return sorted(
            int(path.stem.removeprefix("client-"))
            for path in self._round(round).glob("client-*.safetensors")
        )

    def state(self, round: int) -> Tensors:
        """The state that a round began with. Raises UserError when it is missing or damaged."""
        return read_tensors(self._state(round))[0]

    def read(self, round: int, client: int) -> Upload:
        """A client's upload. Raises UserError when it is missing or damaged."""
        tensors, metadata = read_tensors(self._upload(round, client))
        return Upload(tensors, int(metadata["samples"]))

    def trained(self, round: int, client: int) -> int:
        """The samples that a node says it trained on."""
        return int(read_tensors(self._upload(round, client))[1]["trained"])

    def keep(self, last: int) -> None:
        """Removes all but the last rounds."""
        for old in self.rounds()[:-last]:
            shutil.rmtree(self._round(old))

    def rewind(self, round: int) -> None:
        """Removes the uploads of rounds after `round`."""
        for later in self.rounds():
            if later > round:
                shutil.rmtree(self._round(later))

    def _round(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}"

    def _state(self, round: int) -> Path:
        return self._round(round) / "state.safetensors"

    def _upload(self, round: int, client: int) -> Path:
        return self._round(round) / f"client-{client:06d}.safetensors"
