"""Draws the idea of pFedLoRA for docs/how.md, on light and on dark ground: `make docs`.

Above, a round: three clients with private data and private models of different size, and the
adapters that travel. Below, what a client does in its visit, in two phases. Coordinates are pixels
of a picture 700 wide. The files hold no date: the same code gives the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH, HEIGHT = 700, 574
_SETTINGS = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "svg.hashsalt": "pfedlora",
    "svg.fonttype": "path",
}
_CLIENTS = (
    (((0, 0, 0, 1), (0, 0, 1, 1), (0, 0, 1, 1)), (58, 46, 34, 40, 30)),
    (((2, 2, 3, 3), (2, 3, 3, 3)), (44, 34, 28, 22)),
    (((1, 1, 3), (1, 3, 3)), (32, 24, 18)),
)
"""Of each client: its images by class, in rows, and the heights of its model's layers."""


@dataclass(frozen=True)
class Theme:
    """The colours of a picture: Okabe and Ito's, brighter on dark ground."""

    name: str
    ground: str
    card: str
    edge: str
    text: str
    quiet: str
    frozen: str
    model: str
    adapter: str
    classes: tuple[str, str, str, str]


LIGHT = Theme(
    name="light",
    ground="#ffffff",
    card="#f6f8fa",
    edge="#d0d7de",
    text="#1f2328",
    quiet="#59636e",
    frozen="#c4ccd4",
    model="#0072B2",
    adapter="#D55E00",
    classes=("#009E73", "#E69F00", "#CC79A7", "#56B4E9"),
)
DARK = Theme(
    name="dark",
    ground="#0d1117",
    card="#161b22",
    edge="#30363d",
    text="#e6edf3",
    quiet="#9198a1",
    frozen="#4a525c",
    model="#56B4E9",
    adapter="#F0803C",
    classes=("#2FBF95", "#E69F00", "#D690B8", "#0E7FC0"),
)


class Picture:
    """An axis in pixels with the shapes that the picture is made of."""

    def __init__(self, axes: Axes, theme: Theme) -> None:
        self.axes, self.theme = axes, theme

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 9,
        *,
        colour: str = "",
        bold: bool = False,
        align: str = "center",
    ) -> None:
        weight = "bold" if bold else "normal"
        colour = colour or self.theme.text
        self.axes.text(
            x, y, words, fontsize=size, color=colour, weight=weight, ha=align, va="center"
        )

    def card(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        colour: str = "",
        dashed: bool = False,
        radius: float = 8,
    ) -> None:
        style = f"round,pad=0,rounding_size={radius}"
        face, line = colour or self.theme.card, "--" if dashed else "-"
        edge = self.theme.quiet if dashed else self.theme.edge
        self.axes.add_patch(
            FancyBboxPatch((x, y), width, height, boxstyle=style, fc=face, ec=edge, lw=1, ls=line)
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        colour: str = "",
        width: float = 1.4,
    ) -> None:
        colour = colour or self.theme.quiet
        arrow = FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=10,
            shrinkA=0,
            shrinkB=0,
            color=colour,
            lw=width,
        )
        self.axes.add_patch(arrow)

    def images(self, x: float, y: float, rows: Sequence[Sequence[int]], side: float = 11) -> None:
        """A client's images as squares in their class's colour, centred at (x, y)."""
        step = side + 3
        for i, row in enumerate(rows):
            for j, label in enumerate(row):
                left, low = (
                    x + (j - len(row) / 2) * step + 1.5,
                    y + (len(rows) / 2 - i - 1) * step + 1.5,
                )
                style = "round,pad=0,rounding_size=2"
                patch = FancyBboxPatch(
                    (left, low), side, side, boxstyle=style, fc=self.theme.classes[label], ec="none"
                )
                self.axes.add_patch(patch)

    def model(
        self, x: float, y: float, layers: Sequence[float], *, frozen: bool = False, thick: float = 9
    ) -> None:
        """A model's layers as bars of the given heights, centred at (x, y)."""
        step = thick + 4
        for i, height in enumerate(layers):
            left = x + (i - len(layers) / 2) * step + 2
            face = self.theme.frozen if frozen else self.theme.model
            style = "round,pad=0,rounding_size=2"
            self.axes.add_patch(
                FancyBboxPatch(
                    (left, y - height / 2), thick, height, boxstyle=style, fc=face, ec="none"
                )
            )

    def adapter(self, x: float, y: float, *, scale: float = 1.0, frozen: bool = False) -> None:
        """The adapter: from wide to narrow, and from narrow to the classes, centred at (x, y)."""
        colour = self.theme.frozen if frozen else self.theme.adapter
        for left, right, before, after in ((-15, -1.5, 17, 5), (1.5, 15, 5, 11)):
            corners = [(left, -before), (left, before), (right, after), (right, -after)]
            points = [(x + a * scale, y + b * scale) for a, b in corners]
            shape = Polygon(points, closed=True, fc=colour, ec=colour, lw=1, joinstyle="round")
            self.axes.add_patch(shape)


def draw(p: Picture) -> None:
    _server(p, y=484)
    for k in range(len(_CLIENTS)):
        _client(p, k, x=16 + 228 * k, y=266)
    p.text(16, 456, "each round,\nonly adapters travel", 9, colour=p.theme.adapter, align="left")
    p.text(16, 239, "A client's visit: two phases", 10.5, bold=True, align="left")
    _first_phase(p, x=16, y=14)
    _second_phase(p, x=358, y=14)


def _server(p: Picture, y: float) -> None:
    p.card(16, y, 668, 76)
    p.text(32, y + 58, "Server", 10.5, bold=True, align="left")
    p.text(
        32,
        y + 32,
        "averages the adapters,\nweighted by samples",
        9,
        colour=p.theme.quiet,
        align="left",
    )
    middle = y + 38
    for k in range(3):
        x = 224 + 117 * k
        p.text(x, middle, rf"$\frac{{n_{k + 1}}}{{n}}$", 14)
        p.adapter(x + 34, middle, scale=0.9)
        p.text(x + 62, middle, rf"$\theta_{k + 1}$", 10.5, colour=p.theme.adapter)
        p.text(x + 88, middle, "+" if k < 2 else "=", 13)
    p.adapter(596, middle, scale=1.2)
    p.text(636, middle, r"$\theta$", 15, colour=p.theme.adapter)


def _client(p: Picture, k: int, x: float, y: float) -> None:
    rows, layers = _CLIENTS[k]
    p.card(x, y, 212, 164)
    p.text(x + 14, y + 146, f"Client {k + 1}", 10.5, bold=True, align="left")
    p.card(x + 10, y + 10, 134, 120, colour=p.theme.ground, dashed=True)
    p.images(x + 38, y + 84, rows, side=9)
    p.model(x + 104, y + 84, layers)
    p.text(x + 38, y + 40, "data", 9)
    p.text(x + 104, y + 40, rf"model $\omega_{k + 1}$", 9)
    p.text(x + 77, y + 22, "private: stays here", 8.5, colour=p.theme.quiet)
    p.adapter(x + 178, y + 84, scale=1.2)
    p.text(x + 178, y + 40, "adapter", 9, colour=p.theme.adapter)
    p.text(x + 178, y + 22, "shared", 8.5, colour=p.theme.quiet)
    p.arrow((x + 168, y + 112), (x + 168, y + 216), p.theme.adapter)
    p.arrow((x + 188, y + 216), (x + 188, y + 112), p.theme.adapter)
    p.text(x + 155, y + 190, rf"$\theta_{k + 1}$", 10, colour=p.theme.adapter)
    p.text(x + 199, y + 190, r"$\theta$", 10, colour=p.theme.adapter)


def _first_phase(p: Picture, x: float, y: float) -> None:
    _phase(p, x, y, "1", "freeze the adapter, train the model")
    p.images(x + 38, y + 114, ((0, 1), (0, 0), (1, 0)))
    p.arrow((x + 62, y + 114), (x + 80, y + 114))
    p.model(x + 108, y + 114, (52, 42, 32))
    p.text(x + 108, y + 74, "encoder", 9)
    p.arrow((x + 134, y + 122), (x + 168, y + 148))
    p.arrow((x + 134, y + 106), (x + 168, y + 80))
    p.model(x + 187, y + 152, (26,), thick=11)
    p.text(x + 187, y + 127, "head", 9)
    p.adapter(x + 190, y + 76, frozen=True)
    p.text(x + 190, y + 48, "adapter, frozen", 9, colour=p.theme.quiet)
    p.arrow((x + 206, y + 152), (x + 232, y + 152))
    p.arrow((x + 212, y + 76), (x + 232, y + 76))
    p.text(x + 240, y + 152, "own loss", 9, align="left")
    p.text(x + 240, y + 83, "loss through", 9, align="left")
    p.text(x + 240, y + 68, "the adapter", 9, align="left")
    p.text(
        x + 163,
        y + 20,
        r"$\mu\,\cdot$ own loss $+\ (1-\mu)\,\cdot$ loss through adapter",
        9.2,
        colour=p.theme.model,
    )


def _second_phase(p: Picture, x: float, y: float) -> None:
    _phase(p, x, y, "2", "freeze the model, train the adapter")
    p.images(x + 38, y + 114, ((0, 1), (0, 0), (1, 0)))
    p.arrow((x + 62, y + 114), (x + 80, y + 114))
    p.model(x + 108, y + 114, (52, 42, 32), frozen=True)
    p.text(x + 108, y + 68, "encoder,\nfrozen", 9, colour=p.theme.quiet)
    p.arrow((x + 134, y + 114), (x + 160, y + 114))
    p.adapter(x + 186, y + 114, scale=1.2)
    p.text(x + 186, y + 74, "adapter", 9)
    p.arrow((x + 210, y + 114), (x + 232, y + 114))
    p.text(x + 240, y + 121, "loss through", 9, align="left")
    p.text(x + 240, y + 106, "the adapter", 9, align="left")
    p.text(x + 163, y + 20, "then the adapter goes to the server", 9.5, colour=p.theme.adapter)


def _phase(p: Picture, x: float, y: float, number: str, title: str) -> None:
    p.card(x, y, 326, 208)
    p.text(x + 14, y + 188, number, 13, bold=True, align="left")
    p.text(x + 32, y + 188, title, 10, align="left")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for theme in (LIGHT, DARK):
        with plt.rc_context(_SETTINGS):
            figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100), facecolor=theme.ground)
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT), aspect="equal")
            axes.axis("off")
            draw(Picture(axes, theme))
            figure.savefig(
                FOLDER / f"idea-{theme.name}.svg", metadata={"Date": None, "Creator": None}
            )
            figure.savefig(FOLDER / f"idea-{theme.name}.png", dpi=200, metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
