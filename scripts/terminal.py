"""Pictures of what `pfedlora run` shows: its start, the middle of a round, Ctrl-C, and the end of
the run, which is resumed.

`pip install pyte`, then `python scripts/terminal.py [FOLDER]`. The commands run in a
pseudo-terminal of 110 × 30, whose screen is read at the four moments and drawn as
docs/pictures/terminal-{start,round,stop,end}.svg. Prints how long Ctrl-C took to be acknowledged.
`--light` draws them on white; `--stops` presses Ctrl-C in every phase instead, and prints a table.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from itertools import groupby
from pathlib import Path

import pyte
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
COLUMNS, ROWS = 110, 30
CTRL_C = b"\x03"
PHASES = (
    ("", "starting: PyTorch"),
    ("", "starting: checks"),
    ("", "starting: the SuperLink"),
    ("", "starting: `flwr run`"),
    ("", "starting: the server"),
    ("", "starting: Ray"),
    ("", "clients connected|round 0/100"),
    ("", "round 2/100"),
    ("--engine local", "PyTorch"),
    ("--engine local", "clients connected"),
    ("--engine local", "round 2/100"),
)
"""Options of the command, and what the screen shows when Ctrl-C is pressed."""
_LIGHT = TerminalTheme(
    (255, 255, 255),
    (31, 35, 40),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (77, 45, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
    [
        (87, 96, 106),
        (164, 14, 38),
        (26, 127, 55),
        (99, 60, 1),
        (33, 139, 255),
        (164, 117, 249),
        (49, 146, 170),
        (140, 149, 159),
    ],
)
"""The colours of a common terminal with a white ground."""
_NAMES = {"brown": "yellow"} | {
    f"bright{name}": f"bright_{name}"
    for name in ("black", "red", "green", "blue", "magenta", "cyan", "white")
}
_NAMES |= {"brightbrown": "bright_yellow", "bfightmagenta": "bright_magenta"}
"""Colours that pyte calls otherwise than rich."""
_SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's picture, without the font that it fetches from elsewhere."""


class Terminal:
    """A terminal in which one command after the other is run, and the screen that a user sees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._screen.set_mode(pyte.modes.LNM)
        self._master = -1
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def text(self) -> str:
        """The screen's lines."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.wait()

    def start(self, command: str) -> None:
        """Writes a prompt and the command, and starts it."""
        self._stream.feed(f"$ {command}\r\n".encode())
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        words = [sys.executable, "-m", "pfedlora_flwr.cli", *command.split()[1:]]
        environment = os.environ | {"TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            words,
            cwd=self._folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # so that Ctrl-C is a signal, as in a terminal
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def until(self, pattern: str, seconds: float = 120) -> float:
        """Reads on until the screen shows the pattern; the seconds that this took. Raises
        TimeoutError."""
        began = time.monotonic()
        while not re.search(pattern, self.text):
            if time.monotonic() > began + seconds:
                raise TimeoutError(f"no {pattern!r} on the screen:\n{self.text}")
            if (
                not self._read(0.02)
                and self.process is not None
                and self.process.poll() is not None
            ):
                raise TimeoutError(
                    f"the command ended with {self.process.returncode}, no {pattern!r} on the"
                    f" screen:\n{self.text}"
                )
        return time.monotonic() - began

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def wait(self, seconds: float = 120) -> int:
        """Reads on until the command has ended; its exit code."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        while self._read(0.05):
            pass
        os.close(self._master)
        return self.process.wait(1)

    def svg(self, theme: TerminalTheme) -> str:
        """The screen as a picture, down to its last line that holds anything."""
        lines = [self._line(row) for row in range(ROWS)]
        while not lines[-1].plain.strip():
            lines.pop()
        console = Console(
            record=True,
            width=COLUMNS,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
        )
        for line in lines:
            console.print(line, soft_wrap=True)
        return console.export_svg(title="", theme=theme, code_format=_SVG, unique_id="terminal")

    def _read(self, seconds: float) -> bool:
        """Takes up what the command has written, waiting for it at most so long; whether there was
        anything."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            written = os.read(self._master, 65536)
        except OSError:  # the command has closed it
            return False
        self._stream.feed(written)
        return bool(written)

    def _line(self, row: int) -> Text:
        cells = [self._screen.buffer[row][column] for column in range(COLUMNS)]
        text = Text(no_wrap=True, overflow="crop")
        for look, run in groupby(cells, lambda cell: (cell.fg, cell.bg, cell.bold, cell.italics)):
            style = Style(
                color=_colour(look[0]), bgcolor=_colour(look[1]), bold=look[2], italic=look[3]
            )
            text.append("".join(cell.data for cell in run), style)
        text.rstrip()
        return text


def _colour(name: str) -> Color | None:
    if name == "default":
        return None
    return Color.parse(f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else _NAMES.get(name, name))


def draw(folder: Path, theme: TerminalTheme) -> None:
    """The four pictures, of one run that is stopped and resumed."""

    def take(moment: str) -> None:
        file = folder / f"terminal-{moment}.svg"
        file.write_text(terminal.svg(theme), encoding="utf-8")
        print(f"{file}\n{terminal.text.rstrip()}\n")

    with tempfile.TemporaryDirectory() as place, Terminal(Path(place)) as terminal:
        terminal.start("pfedlora run quickstart -o rounds=6")
        terminal.until("Ray and its actors")
        take("start")
        terminal.until(r"round 3/6 · [4-8] of 10")
        take("round")
        terminal.press(CTRL_C)
        print(f"Ctrl-C was acknowledged after {terminal.until('stopping'):.2f} s")
        take("stop")
        print(f"exit code {terminal.wait()}")
        terminal.start("pfedlora run --resume -o output=runs/quickstart")
        print(f"exit code {terminal.wait()}")
        take("end")


def stop() -> None:
    """Ctrl-C in each phase: the seconds until the screen says so and until the command has ended,
    its exit code and its last line."""
    for options, phase in PHASES:
        with tempfile.TemporaryDirectory() as place, Terminal(Path(place)) as terminal:
            terminal.start(f"pfedlora run quickstart -o rounds=100 {options}")
            terminal.until(phase)
            terminal.press(CTRL_C)
            said, began = terminal.until("stopp"), time.monotonic()
            code = terminal.wait()
            last = terminal.text.rstrip().splitlines()[-1]
            print(
                f"{phase:40} {said:5.2f} s {said + time.monotonic() - began:6.1f} s  exit code"
                f" {code}  {last}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--stops", action="store_true")
    wanted = parser.parse_args()
    if wanted.stops:
        stop()
    else:
        draw(wanted.folder, _LIGHT if wanted.light else SVG_EXPORT_THEME)


if __name__ == "__main__":
    main()
