"""An exception as one line, its traceback in a file, and exceptions of user code."""

from __future__ import annotations

import contextlib
import errno
import os
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors.errors import UserCodeError, UserError

_NOT_THEIRS = tuple(
    folder + os.sep
    for folder in (
        str(Path(__file__).parent.parent),
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)
_LONGEST = 300
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRACEBACK = "; traceback in "


@contextlib.contextmanager
def user_code(what: str, name: str, *through: type[Exception]) -> Iterator[None]:
    """What a user's own `package.module:Class` raises within becomes a UserCodeError; of ours (a
    name without a colon) nothing changes.

    what: model, method, dataset or observer. through: errors that a contract names, and that stay.
    What it changes of the whole process, as PyTorch's default type, is as before afterwards.
    """
    try:
        with _settings_kept() if ":" in name else contextlib.nullcontext():
            yield
    except (Exception, SystemExit) as error:
        if ":" not in name or isinstance(error, (UserError, *through)):
            raise
        raise UserCodeError(f"{what} {name!r}: {brief(error)}") from error


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Puts the process's settings back."""
    before = process_settings()
    try:
        yield
    finally:
        put_settings(before)


def process_settings() -> list[Any]:
    """What decides in this process, and thread, what our own code computes, and where."""
    return [get() for get, _ in _settings()]


def put_settings(values: list[Any]) -> None:
    """Puts those back that are otherwise."""
    for (get, put), value in zip(_settings(), values, strict=True):
        if get() != value:
            put(value)


def _settings() -> list[tuple[Callable[[], Any], Callable[[Any], object]]]:
    import numpy as np
    import torch

    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        # the CPU by its name would stay as a mode, which every operation goes through
        (
            torch.get_default_device,
            lambda d: torch.set_default_device(d if d.type != "cpu" else None),
        ),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (np.geterr, lambda how: np.seterr(**how)),
        (os.getcwd, os.chdir),
    ]


def brief(error: BaseException) -> str:
    """An exception in a line: its type, what it says, and the user's own file and line where it was
    raised."""
    if isinstance(error, UserError):
        return str(error)
    said = _said(error.msg if isinstance(error, SyntaxError) else str(error))
    return f"{type(error).__name__}: {said[:_LONGEST]}".removesuffix(": ") + _place(error)


def _said(text: str) -> str:
    """The first line, with the next where it ends in a colon, as PyTorch's for a state_dict does;
    it names how many more there are."""
    first, *more = [line.strip() for line in text.strip().splitlines()] or [""]
    if not first.endswith(":") or not more:
        return first
    rest = f" (and {len(more) - 1} more)" if more[1:] else ""
    return f"{first} {more[0].removesuffix('.')[: _LONGEST - len(first) - len(rest) - 1]}{rest}"


def is_ours(error: BaseException) -> bool:
    """Whether an error is a line of ours, and not what a user's own code raised."""
    return isinstance(error, UserError) and not isinstance(error, UserCodeError)


def no_room(error: BaseException) -> str:
    """The line of a full disk; empty for any other error."""
    if not isinstance(error, OSError) or error.errno not in _FULL:
        return ""
    return (
        f"{error.strerror}: nothing that was written before is lost; make room and continue with"
        " resume=true"
    )


def for_users(error: BaseException) -> str:
    """The line of an error that is meant for whoever runs a federation, ours or a full disk's;
    empty of any other."""
    return str(error) if is_ours(error) else no_room(error)


def told(error: BaseException) -> str:
    """What may be said of an error to those who must not see the data: a line of ours; of any other
    its type alone."""
    return str(error) if is_ours(error) else type(_theirs(error)).__name__


def _theirs(error: BaseException) -> BaseException:
    """What the user's own code raised, where it did."""
    return error.__cause__ if isinstance(error, UserCodeError) and error.__cause__ else error


def with_traceback(line: str, error: BaseException, file: Path | None = None) -> str:
    """The line, with the file that it names written: the error's traceback, in `file` or, where
    that cannot be, a temporary file."""
    text = "".join(traceback.format_exception(_theirs(error)))
    try:
        if file is None:
            handle, name = tempfile.mkstemp(prefix="pfedlora-traceback-", suffix=".txt")
            os.close(handle)
            file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as failure:  # a full disk: the line must come all the same
        return f"{line} (its traceback cannot be written: {failure.strerror})"
    return f"{line}{_TRACEBACK}{file}"


def final_line(error: UserError) -> str:
    """The line with which a command ends. Of user code it names the traceback."""
    return str(error) if is_ours(error) else with_traceback(str(error), error)


def names_traceback(line: str) -> bool:
    """Whether the line came from `with_traceback`: something is to be mended in code."""
    return _TRACEBACK in line


def _place(error: BaseException) -> str:
    """`, at FILE:LINE`: the innermost line that is neither ours nor a library's; empty where there
    is none."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    theirs = [
        f"{file.removeprefix(os.getcwd() + os.sep)}:{line}"
        for file, line in frames
        if Path(file).is_file() and not file.startswith(_NOT_THEIRS)
    ]
    return f", at {theirs[-1]}" if theirs else ""
