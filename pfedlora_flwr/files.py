"""Atomic file writes: written aside, then renamed into place; and the cache's folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pfedlora_flwr.errors import UserError

LOOK = 1.0
"""Seconds for which who takes a lock waits, since a watcher may look whether it is held."""
_AGAIN = 0.05
"""Seconds between two looks at a lock."""


BEGIN = 200
"""Bytes by which a file is recognised."""
_DISGUISES = {
    b"version https://git-lfs.github.com/spec/": "a Git LFS pointer: run git lfs pull",
    b"<!doctype html": "a web page, as of a download that failed",
    b"<html": "a web page, as of a download that failed",
    b"pk\x03\x04": "a zip archive, as an Excel file is: save it as CSV",
    b"\x93numpy": "an .npy file of one array: save all arrays together by np.savez",
    b"par1": "a Parquet file",
    b"\x89hdf": "an HDF5 file",
}
"""What files that are not what they are called begin with, in small letters, and what they are."""
Stamp = tuple[str, int, int]
"""A file's path, size, and when it was changed, in ns."""


def cache_root() -> Path:
    """Where decoded datasets live: $PFEDLORA_CACHE, or ~/.cache/pfedlora."""
    return Path(os.environ.get("PFEDLORA_CACHE") or Path.home() / ".cache" / "pfedlora")


def made(folder: Path) -> Path:
    """Creates a folder in the cache. The cache is its user's alone: it holds private data."""
    cache_root().mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(file: Path, array: npt.NDArray[Any]) -> None:
    """Writes an array that can be computed again."""
    written = io.BytesIO()
    np.save(written, array)
    made(file.parent)
    write_atomically(file, written.getvalue(), durable=False)


@contextlib.contextmanager
def kept_in(file: Path) -> Iterator[None]:
    """Around what reads and keeps an array in a file of the cache. Raises UserError where the cache
    cannot be written, or the file is damaged."""
    try:
        yield
    except UserError:  # a ValueError, too
        raise
    except OSError as error:
        raise UserError(
            f"cache {cache_root()}: {error.strerror or error}; set PFEDLORA_CACHE to a writable"
            " folder"
        ) from None
    except (ValueError, EOFError):
        raise UserError(f"{file} is damaged; remove it; it will be created again") from None


def write_atomically(path: Path, data: bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Replaces `path` by `data`: a crash at any moment leaves the old file or the new one.

    durable: also when the power fails.
    """
    # two containers with a folder in common may have one process id
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with aside.open("wb") as stream:
            stream.writelines([data] if isinstance(data, bytes) else data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        aside.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def from_json(text: str | bytes) -> Any:
    """What a text in JSON says. Raises ValueError for another one, and one that nests too deeply
    to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def check_regular(file: Path) -> None:
    """Raises UserError for what is there and no file: to read a pipe would wait."""
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no regular file: restore it")


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path, absolute and with `~` written out; nothing need be there. Raises UserError if no
    file can have it."""
    try:
        found = Path(path).expanduser().absolute()
        str(found).encode()
        found.lstat()
    except FileNotFoundError:
        return found
    # too long, nobody's home, a null character, a name that is not UTF-8
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise UserError(f"{str(path)[:80]!r} cannot be used as a path ({why})") from None
    return found


def disguised(begins: bytes) -> str:
    """`it is …`, of a file that is another than its name says, by its first BEGIN bytes; empty:
    that is not seen."""
    text = begins[:BEGIN].lstrip().lower() or b"\0"
    told = (told for mark, told in _DISGUISES.items() if text.startswith(mark))
    found = next(told, "" if begins else "empty")
    return found and f"it is {found}"


def whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines that are left in the stream, which then stands before the last one where that has
    no end yet."""
    while (line := stream.readline()).endswith(b"\n"):
        yield line
    stream.seek(-len(line), os.SEEK_CUR)


def make_folder(path: Path) -> None:
    """Makes a folder, if it is not there, and those above it. Raises UserError when it cannot be
    made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); choose another folder"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written (Permission denied); choose another folder")


def remove_folder(folder: Path) -> None:
    """Removes a folder, as far as it can be; where it is a link, all that is in the folder that it
    leads to, and the link stays."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for inside in folder.iterdir() if folder.is_dir() else ():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside, ignore_errors=True)
        else:
            inside.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Raises UserError unless a folder is there."""
    if not path.is_dir():
        raise UserError(f"{path} is not a directory")


def check_replaceable(file: Path, *, overwrite: bool, option: str = "output") -> None:
    """Raises UserError if an option names a file that is there, unless it is to be overwritten;
    what is no regular file never is."""
    if file.is_dir():
        raise UserError(f"{file} is a directory; give a file")
    if file.is_symlink() or file.exists():
        if not file.is_file():
            raise UserError(f"{file} is not a regular file; give another {option}")
        if not overwrite:
            raise UserError(
                f"{file} exists; replace it with overwrite=true, or give another {option}"
            )


def check_writable(path: Path) -> None:
    """Raises UserError if the folder `path`, or the nearest there is above it, lets nothing be
    written. Changes nothing."""
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir():
        raise UserError(f"{path} cannot be written ({nearest} is no folder)")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written (Permission denied); choose another folder")


def is_locked(path: Path, patience: float = 0.0) -> bool:
    """Whether a process holds the lock on this file for so many seconds; False where there is no
    such file.

    Looking needs no right to write, and does not disturb other looks. It holds whoever wants the
    lock back for less than `LOOK` seconds. Raises OSError for a file that may not be read."""
    deadline = time.monotonic() + patience
    with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return True
                time.sleep(_AGAIN)
    return False


def sync_folder(folder: Path) -> None:
    """Brings the names of a folder's files to the disk, where the system lets it be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def stamp_of(file: Path) -> Stamp:
    """The file as it is now: what is kept by its stamp is read anew where it has changed. Raises
    OSError."""
    about = file.stat()
    return str(file), about.st_size, about.st_mtime_ns


@lru_cache(maxsize=64)
def file_sha256(stamp: Stamp) -> str:
    """Of the file with this stamp, read once."""
    with Path(stamp[0]).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the mapping's order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.numpy()
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
