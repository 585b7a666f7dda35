"""The output of all commands: consoles, plain help, and a line when Ctrl-C ends a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

# `synthetic:100:` is no emoji, and the path `runs/[b]` no style; numbers have no colour
out = Console(emoji=False, markup=False, highlight=False)
err = Console(stderr=True, soft_wrap=True, emoji=False, markup=False, highlight=False)


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
    """A command whose help ends with every key."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from pfedlora_flwr.config import all_keys

        lines = [
            f"{k.name} = {k.text(k.default)}\n    {k.meaning} [{k.allowed}]\n"
            for k in all_keys().values()
        ]
        self.epilog = (
            "\b\nKeys for CONF and -o (name = default, meaning, allowed values):\n\n\b\n"
            + "\n\b\n".join(lines)
        )
        super().format_epilog(ctx, formatter)
