"""The models that a process used last: a client that visits again need not read its model from
disk."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pfedlora_flwr.models.kept import kept

_LIMIT = 64 * 2**20


class ModelCache:
    """Modules by (run, client), each tagged with its version, of `limit` bytes in all; the least
    recently used go first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self.limit = limit
        self._held: OrderedDict[tuple[str, int], tuple[int, nn.Module, int]] = OrderedDict()

    def take(self, run: str, client: int, version: int) -> nn.Module | None:
        """The module if it is at `version`. It leaves the cache: a visit that fails half-way must
        not be found again."""
        held = self._held.pop((run, client), None)
        return held[1] if held and held[0] == version else None

    def put(self, run: str, client: int, version: int, module: nn.Module) -> None:
        # a base is the process's, not the client's
        size = sum(t.nbytes for t in kept(module).values())
        self._held[run, client] = version, module, size
        while sum(size for _, _, size in self._held.values()) > self.limit and len(self._held) > 1:
            self._held.popitem(last=False)


MODELS = ModelCache()
"""This process's."""
