"""The kinds of input: images, series, vectors and text. What depends on the kind is here, except
how files are read (`data/`) and how figures are drawn (`report/input_figures.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.training.loop import Samples

Numbers = Sequence[float]
Shape = tuple[int, ...]
"""Of one input as a model takes it, an entry for each of its kind's axes."""
_MOST_NUMBERS = 100_000_000
"""In one input."""
_SMALLEST = 8
"""Height and width of an image, at least."""


@dataclass(frozen=True)
class Kind:
    """A kind of input. This class is the kind whose numbers a dataset holds in the shape that a
    model takes; where another kind differs, its own class overrides a method.

    name: in files and messages. unit: what a dataset's samples are called.
    axes: of one input as a model takes it, in their order; the key `input-shape` has them so.
    dtypes: of the numbers that a dataset holds.
    program: the type of what an exported program takes.
    by: what has a mean and a standard deviation of its own: a channel or a feature.
    family: of the models that `models=auto` takes.
    libraries: how models are named that other libraries have for it.
    suffixes: of the files that hold it, in training, `predict` and `evaluate` alike.
    input_name: of an ONNX program's input.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    dtypes: tuple[type[np.generic], ...]
    program: torch.dtype
    by: str
    family: str
    libraries: tuple[str, ...]
    suffixes: tuple[str, ...]
    input_name: str = "inputs"
    one_a_file: ClassVar[bool] = False
    """Whether a file holds one input and not rows of them."""

    def __repr__(self) -> str:
        return self.name

    # How a shape is written and read.

    def write(self, shape: Shape) -> str:
        """A shape as the key `input-shape` has it: `6x128`."""
        return "x".join(map(str, shape))

    def read(self, text: str) -> Shape | None:
        """The shape in such a text; None where it is no shape of this kind."""
        words = text.split("x")
        if len(words) != len(self.axes) or not all(
            word.isascii() and word.isdigit() and len(word) < 10 for word in words
        ):
            return None
        shape = tuple(map(int, words))
        return shape if self._allows(shape) else None

    @property
    def form(self) -> str:
        """How `input-shape` is written, in a message: `CHANNELSxTIME of series`."""
        return f"{'x'.join(axis.upper() for axis in self.axes)} of {self}"

    def of(self, shape: Shape) -> str:
        """Kind and shape, as a line has them: `images of 3x32x32`."""
        return f"{self} of {self.write(shape)}"

    def in_words(self, shape: Shape) -> str:
        """The shape for a reader: `6 × 128 (channels × time)`, `13 features`."""
        sides = " × ".join(map(str, shape))
        return f"{sides} ({' × '.join(self.axes)})" if len(shape) > 1 else f"{sides} {self.axes[0]}"

    # How a dataset holds it.

    @property
    def arrays(self) -> str:
        """The arrays that `taken` takes, in a message."""
        return f"[n, {', '.join(self.axes)}]"

    def taken(self, given: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """An array of a user's as a dataset holds it; None for what is not of this kind.

        Integers and floats become float32 where that holds all of their type exactly, else
        float64."""
        if given.ndim != 1 + len(self.axes) or given.dtype.kind not in "iuf":
            return None
        return given.astype(np.float32 if np.can_cast(given.dtype, np.float32) else np.float64)

    def holds(self, inputs: npt.NDArray[Any]) -> bool:
        """Whether a dataset's inputs, [n, …], are of this kind."""
        return inputs.ndim == 1 + len(self.axes) and inputs.dtype in self.dtypes

    def shape_of(self, inputs: npt.NDArray[Any]) -> Shape:
        """The shape of one of a dataset's inputs, as a model takes it."""
        return inputs.shape[1:]

    # How a model takes it.

    def blank(self, shape: Shape, n: int) -> Tensor:
        """`n` inputs of zeros, [n, *shape]."""
        return torch.zeros(n, *shape)

    def random(self, shape: Shape, n: int, generator: torch.Generator) -> Tensor:
        """`n` inputs as training has them, drawn at random, [n, *shape]."""
        return torch.randn(n, *shape, generator=generator)

    def samples(self, inputs: Tensor, labels: Tensor, mean: Numbers, std: Numbers) -> Samples:
        """A dataset's inputs, normalised for a model. mean, std: one for each channel or
        feature."""
        rest = (1,) * (inputs.ndim - 2)
        middle, width = (
            torch.tensor(values, dtype=torch.float64, device=inputs.device).reshape(-1, *rest)
            for values in (mean, std)
        )
        return Samples(self.normalised(inputs.double(), middle, width, fill=True), labels)

    def normalised(
        self, inputs: Tensor, mean: Tensor, std: Tensor, *, fill: bool = False
    ) -> Tensor:
        """A program's inputs, [n, *shape], normalised for the model in it: in the program's type
        before they become float32. mean, std: [shape[0], 1, …]. fill: whether NaN is a missing
        value, which the mean replaces."""
        found = ((inputs - mean) / std).float()
        return torch.where(found.isnan(), 0.0, found) if fill else found

    def example(
        self, shape: Shape, n: int, mean: Tensor, std: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """`n` random inputs as a dataset has them, and the same as a program takes them."""
        raw = mean + std * torch.randn(n, *shape, generator=generator, dtype=self.program)
        return raw, raw

    def fed(self, shape: Shape) -> str:
        """What a program is fed with, in words."""
        return f"{self}, {self._program(shape)}, in the units of the training data"

    def preprocessing(self, shape: Shape, mean: object, std: object) -> dict[str, Any]:
        """What is done to an input before it is normalised, in the words of Hugging Face's
        processors."""
        return {}

    def _program(self, shape: Shape) -> str:
        sides = ", ".join(map(str, shape))
        return f"{str(self.program).removeprefix('torch.')} [n, {sides}]"

    def _allows(self, shape: Shape) -> bool:
        return min(shape) >= 1 and math.prod(shape) <= _MOST_NUMBERS


class _Images(Kind):
    """A dataset holds pixels, uint8 [n, height, width, 1 or 3]; a model takes float32 [n, channels,
    height, width], scaled to [0, 1] and normalised."""

    one_a_file = True

    @property
    def form(self) -> str:
        return f"{super().form} (1 or 3 channels, from {_SMALLEST} pixels)"

    def in_words(self, shape: Shape) -> str:
        return " × ".join(map(str, (*shape[1:], shape[0])))

    @property
    def arrays(self) -> str:
        return "uint8 [n, height, width] or [n, height, width, 1 or 3]"

    def taken(self, given: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        if given.dtype != np.uint8 or given.ndim not in (3, 4):
            return None
        pixels = given[..., None] if given.ndim == 3 else given
        return pixels if pixels.shape[3] in (1, 3) else None

    def shape_of(self, inputs: npt.NDArray[Any]) -> Shape:
        return (inputs.shape[3], *inputs.shape[1:3])

    def samples(self, inputs: Tensor, labels: Tensor, mean: Numbers, std: Numbers) -> Samples:
        """Pixels are scaled to [0, 1] and normalised in each batch."""
        device = inputs.device
        scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
        return Samples(inputs, labels, scale, shift)

    def example(
        self, shape: Shape, n: int, mean: Tensor, std: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(
            0, 256, (n, *shape[1:], shape[0]), dtype=torch.uint8, generator=generator
        )
        return pixels, pixels.permute(0, 3, 1, 2).float() / 255

    def fed(self, shape: Shape) -> str:
        colours = "RGB" if shape[0] == 3 else "grey"
        return f"{self} {colours}, {self._program(shape)}, scaled to [0, 1]"

    def preprocessing(self, shape: Shape, mean: object, std: object) -> dict[str, Any]:
        channels, height, width = shape
        return {
            "do_convert_rgb": channels == 3,
            "do_grayscale": channels == 1,
            "do_resize": True,
            "size": {"height": height, "width": width},
            "resample": 2,  # bilinear, as Pillow numbers it
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "image_mean": mean,
            "image_std": std,
            "data_format": "channels_first",
        }

    def _allows(self, shape: Shape) -> bool:
        return super()._allows(shape) and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST


BYTES_A_TOKEN = 32
"""Of a text that a dataset keeps, for each token that a model takes."""
FEW_TOKENS = 4
"""Tokens that every vocabulary has, the first."""
PADDING = -1
"""What stands after the last token of a text."""


class _Text(Kind):
    """A dataset holds texts in UTF-8, uint8 [n, BYTES_A_TOKEN · tokens], with zeros after the last
    byte; a model takes what its tokeniser makes of them, int64 [n, tokens], with PADDING after the
    last token. Nothing of it is normalised."""

    @property
    def form(self) -> str:
        return "'TOKENS tokens' of text"

    def write(self, shape: Shape) -> str:
        return f"{shape[0]} tokens"

    def read(self, text: str) -> Shape | None:
        words = text.removesuffix(" tokens")
        return super().read(words) if words != text else None

    @property
    def arrays(self) -> str:
        return "a list of texts, or files"

    def taken(self, given: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        return None

    def shape_of(self, inputs: npt.NDArray[Any]) -> Shape:
        return (inputs.shape[1] // BYTES_A_TOKEN,)

    def blank(self, shape: Shape, n: int) -> Tensor:
        return torch.zeros(n, *shape, dtype=torch.int64)

    def random(self, shape: Shape, n: int, generator: torch.Generator) -> Tensor:
        return torch.randint(0, FEW_TOKENS, (n, *shape), generator=generator)

    def samples(self, inputs: Tensor, labels: Tensor, mean: Numbers, std: Numbers) -> Samples:
        """inputs: tokens."""
        return Samples(inputs, labels)

    def normalised(
        self, inputs: Tensor, mean: Tensor, std: Tensor, *, fill: bool = False
    ) -> Tensor:
        return inputs

    def example(
        self, shape: Shape, n: int, mean: Tensor, std: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Tokens, twice."""
        tokens = self.random(shape, n, generator)
        return tokens, tokens

    def fed(self, shape: Shape) -> str:
        return (
            f"tokens, {self._program(shape)}, as the model's own tokeniser makes them if it does"
            f" not pad and cuts to {shape[0]}, with {PADDING} after the last"
        )


ARRAYS, TABLES = (".npz", ".npy"), (".csv", ".parquet")
"""Suffixes of files that hold rows of inputs."""

IMAGES = _Images(
    name="images",
    unit="images",
    axes=("channels", "height", "width"),
    dtypes=(np.uint8,),
    program=torch.float32,
    by="channel",
    family="cnn",
    libraries=("timm:NAME", "torchvision:NAME"),
    suffixes=(".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    input_name="images",
)
SERIES = Kind(
    name="series",
    unit="series",
    axes=("channels", "time"),
    dtypes=(np.float32, np.float64),
    program=torch.float64,
    by="channel",
    family="conv1d",
    libraries=(),
    suffixes=ARRAYS,
)
VECTORS = Kind(
    name="vectors",
    unit="rows",
    axes=("features",),
    dtypes=(np.float32, np.float64),
    program=torch.float64,
    by="feature",
    family="mlp",
    libraries=(),
    suffixes=(*TABLES, *ARRAYS),
)
TEXT = _Text(
    name="text",
    unit="texts",
    axes=("tokens",),
    dtypes=(np.uint8,),
    program=torch.int64,
    by="token",
    family="hf:",
    libraries=("hf:FOLDER", "hf:NAME"),
    suffixes=(".txt", *TABLES),
    input_name="tokens",
)
KINDS: tuple[Kind, ...] = (IMAGES, SERIES, VECTORS, TEXT)
"""All of them. Where a text, a shape or an array may be of several, the first is meant."""


def named(name: str) -> Kind:
    """The kind of this name."""
    return next(kind for kind in KINDS if kind.name == name)


def of_shape(shape: Shape) -> Kind:
    """The kind of inputs of which a shape alone is known: by its number of axes."""
    return next(kind for kind in KINDS if len(kind.axes) == len(shape))


def of_inputs(inputs: npt.NDArray[Any]) -> Kind:
    """The kind of a dataset's inputs."""
    return next(kind for kind in KINDS if kind.holds(inputs))


def read_shape(text: str) -> tuple[Kind, Shape]:
    """Kind and shape in the key `input-shape`: 3x64x64, 6x128 or 13. Raises UserError."""
    for kind in KINDS:
        if (shape := kind.read(text)) is not None:
            return kind, shape
    forms = ", ".join(kind.form for kind in KINDS)
    raise UserError(f"input-shape is {text[:40]!r}; allowed: auto, or {forms}")
