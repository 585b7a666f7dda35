"""SGD steps as a CUDA graph: captured once, then replayed without Python in between. A step of
these models is bound by its launches.

Not every loss can be captured (one that waits for the GPU cannot); then the steps run eagerly,
which is the reference anyway."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import Tensor

from pfedlora_flwr.errors import first_line
from pfedlora_flwr.training.lanes import turn

logger = logging.getLogger(__name__)
WARM_UP = 3
"""Real steps of a size that run eagerly before the capture: they make the optimiser's buffers and
the libraries' workspaces."""
TOGETHER = 32
"""Captured steps that are queued before another lane goes on."""


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream of its own for what is captured; the device's other work waits for it, and it for
    the others'. A lane has one already."""
    if device.type != "cuda":
        yield
        return
    if (own := torch.cuda.current_stream(device)) != torch.cuda.default_stream(device):
        own.synchronize()  # what was made here until now, other lanes may read
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class StepGraph:
    """One step on `batch` consecutive entries of `order` (int64 [n], on the GPU), at a place that
    moves on with every replay.

    step: trains on the samples that an index [batch] names; it reads and writes tensors that stay
    where they are. Raises RuntimeError when the step cannot be captured."""

    def __init__(self, step: Callable[[Tensor], None], order: Tensor, batch: int) -> None:
        self._at = torch.zeros((), dtype=torch.int64, device=order.device)
        self._batch = batch
        self._graph = torch.cuda.CUDAGraph()
        # kept: each replay reads it where it is, and what is freed here another tensor takes
        self._places = torch.arange(batch, device=order.device)
        with torch.cuda.graph(self._graph, stream=torch.cuda.current_stream(order.device)):
            step(order.index_select(0, self._at + self._places))
            self._at += batch

    def run(self, start: int, steps: int) -> None:
        """`steps` steps from the entry `start` on."""
        self._at.fill_(start)
        for _ in range(steps):
            self._graph.replay()


def capture(step: Callable[[Tensor], None], order: Tensor, batch: int) -> StepGraph | None:
    """The step as a graph, or None, with a warning, where it cannot be captured."""
    try:
        return StepGraph(step, order, batch)
    except RuntimeError as error:
        logger.warning(
            "the step cannot be captured as a CUDA graph and runs eagerly: %s",
            first_line(str(error)),
        )
        return None


class Steps:
    """An epoch's steps over the batches of `order`: eagerly, or, on a GPU, captured after the first
    few of a size and replayed.

    batches_of_one: whether a last sample that is left over is a batch of its own; if not, it joins
    the batch before."""

    def __init__(
        self,
        step: Callable[[Tensor], None],
        order: Tensor,
        batch: int,
        *,
        batches_of_one: bool = True,
    ) -> None:
        self._step, self._order = step, order
        self._sizes = [batch] * (len(order) // batch) + (
            [len(order) % batch] if len(order) % batch else []
        )
        if not batches_of_one and self._sizes[-1] == 1 and len(self._sizes) > 1:
            self._sizes[-2:] = [self._sizes[-2] + 1]
        self._capturable = order.device.type == "cuda"
        self._done = Counter[int]()
        self._graphs: dict[int, StepGraph | None] = {}
        self._more = TOGETHER

    def epoch(self) -> None:
        """One step for each batch, in order. Other lanes go on in between."""
        at = 0
        for size, alike in groupby(self._sizes):
            left = len([*alike])
            while left:
                if graph := self._graph(size):
                    steps = min(left, self._more)
                    graph.run(at, steps)
                    self._more -= steps
                else:
                    steps = 1
                    self._step(self._order[at : at + size])
                    self._done[size] += 1
                    self._more = 0
                at += steps * size
                left -= steps
                if not self._more:
                    turn()
                    self._more = TOGETHER

    def _graph(self, size: int) -> StepGraph | None:
        """The step on so many samples, captured once it has run a few times; None: it runs
        eagerly."""
        if self._capturable and size not in self._graphs and self._done[size] >= WARM_UP:
            self._graphs[size] = capture(self._step, self._order, size)
            self._capturable = self._graphs[size] is not None
        return self._graphs.get(size)
