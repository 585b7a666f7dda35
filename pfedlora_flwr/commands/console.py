"""The output of all commands: consoles, plain help, and a line when Ctrl-C ends a command."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import click
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from pfedlora_flwr.ops import known

_TRUE = "resume|overwrite|accept-changed-code|drop-models|all-clients|rows|dry-run"
_WITH_VALUE = "engine|jobs|shard|redo|superlink|without|format|samples|port"
_KEY = re.compile(
    rf"(?<![\w./'\"-])(?:({_TRUE})=true\b|({_WITH_VALUE})(?:=| (?=is ['\d]))"
    r"|(client|methods|seeds|only|from|sites|label|rows)=)"
)
"""Options of the commands as messages name them, which know no command line."""


def flags(text: str) -> str:
    """A message with options as they are written here: `--resume` for `resume=true`."""
    return _KEY.sub(lambda key: f"--{key[1] or f'{key[2] or key[3]} '}", text)


class Flags(Console):
    """Prints the messages of all rooms. A file is no terminal, whatever FORCE_COLOR says."""

    @property
    def is_terminal(self) -> bool:
        return bool(self.file.isatty())

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(flags(one) if isinstance(one, str) else one for one in objects), **how)


# `synthetic:100:` is no emoji, and the path `runs/[b]` no style; numbers have no colour
out = Flags(emoji=False, markup=False, highlight=False)
err = Flags(stderr=True, soft_wrap=True, emoji=False, markup=False, highlight=False)


def forgiving() -> None:
    """Lets stdout and stderr write what their encoding lacks as its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def plain(console: Console) -> Callable[[str], None]:
    """Prints lines, however long."""
    return lambda line: console.print(line, soft_wrap=True)


def say(line: str) -> None:
    """One line on stderr."""
    err.print(" ".join(line.splitlines()))


class Group(TyperGroup):
    """All commands. Typer ends one that Ctrl-C interrupts with code 130 and no word."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("stopped by the user")
            raise


class PlainCommand(TyperCommand):
    """A command whose help is plain text. Its arguments are described in its text: Typer 0.20 loses
    their help with Click 8.4."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        # Typer escapes for rich, which we do not use
        formatter.buffer[:] = [text.replace("\\[", "[") for text in formatter.buffer]


class WithKeys(PlainCommand):
    """A command whose help ends with every key, by part."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[str]] = {}
        for row in known.find_keys():
            parts.setdefault(row["part"], []).append(assigned(row))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                "Keys for CONF and -o, with their defaults. `pfedlora keys WORD` explains those"
                " with WORD in their name or meaning."
            )
        for part, told in parts.items():
            with formatter.section(part):
                at, line = " " * formatter.current_indent, ", ".join(told)
                for one in textwrap.wrap(line, formatter.width - len(at), break_on_hyphens=False):
                    formatter.write(f"{at}{one}\n")


def assigned(row: known.Row) -> str:
    """A key with its default, as `-o` takes it."""
    default = row["default"]
    return f"{row['key']}={str(default).lower() if isinstance(default, bool) else default}"


def key_names(incomplete: str) -> list[str]:
    """The keys that begin so, for the shell."""
    return [f"{row['key']}=" for row in known.find_keys() if row["key"].startswith(incomplete)]


def argument(metavar: str, default: Any = ...) -> Any:
    """An argument as `PlainCommand` has them; `...`: it must be given."""
    return typer.Argument(default, metavar=metavar, hidden=True)


def flag(name: str, text: str) -> Any:
    """An option without a value, which is False where it is not given."""
    return typer.Option(False, name, help=text)


def option(default: Any, metavar: str | None, text: str, *names: str, **how: Any) -> Any:
    """An option with a value, named as its parameter or by `names`; `...`: it must be given."""
    return typer.Option(default, *names, metavar=metavar, help=text, **how)
