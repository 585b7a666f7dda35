"""Models of text: `hf:FOLDER`, a folder as Hugging Face's transformers saves one, or `hf:NAME` of
its hub; `:layers=N` keeps the first N layers, `:pool=first` takes the first token for a text.

transformers is imported when such a model is built, and tokenizers when a text is read."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError, first_line, needed, permissions, some
from pfedlora_flwr.files import Stamp, absolute, file_sha256, stamp_of
from pfedlora_flwr.models import weights
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.kinds import BYTES_A_TOKEN, FEW_TOKENS, PADDING, TEXT

PREFIX = "hf:"
POOLS = ("mean", "first")
_FILES = ("*.json", "*.safetensors")
"""That are fetched from the hub."""
_WAY = "no folder of that name is here; give one that transformers saved, hf:FOLDER"
Stamps = tuple[Stamp, ...]


@dataclass(frozen=True)
class Named:
    """A model's name in its parts. place: the folder, or the name on the hub. layers: how many are
    kept; None: all. pool: what a text's representation is, the tokens' mean or the first."""

    place: str
    layers: int | None = None
    pool: str = POOLS[0]

    def __str__(self) -> str:
        layers = f":layers={self.layers}" if self.layers else ""
        pool = "" if self.pool == POOLS[0] else f":pool={self.pool}"
        return f"{PREFIX}{self.place}{layers}{pool}"

    @property
    def is_path(self) -> bool:
        """Whether it is a folder here, or can be nothing else."""
        return self.place.startswith(("/", ".", "~")) or Path(self.place).exists()


class Encoder(nn.Module):
    """Tokens, int64 [B, T], PADDING after the last → [B, width]."""

    def __init__(self, model: Any, pool: str) -> None:
        super().__init__()
        self.model, self.pool = model, pool

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PADDING
        found = self.model(input_ids=tokens.clamp(min=0), attention_mask=there.long())
        states: Tensor = found.last_hidden_state
        if self.pool == "first":
            return states[:, 0]
        weight = there[..., None].to(states.dtype)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


class TextModel(Whole):
    """Such an encoder and a head."""

    def own_names(self) -> dict[str, str]:
        """The names in transformers' own model, and `classifier.…` for the head."""
        return {
            name: name.removeprefix("module.model.").replace("last.", "classifier.", 1)
            if name.startswith(("module.model.", "last."))
            else name
            for name in self.state_dict()
        }


def is_text(name: str) -> bool:
    """Whether a model's name is one of these."""
    return name.startswith(PREFIX)


def parse(name: str) -> Named:
    """The parts of such a name, without what stands in brackets. Raises UserError for another
    form."""
    place, *said = name.removeprefix(PREFIX).split(":")
    settings = dict(word.partition("=")[::2] for word in said)
    layers, pool = settings.pop("layers", ""), settings.pop("pool", POOLS[0])
    number = int(layers) if layers.isascii() and layers.isdigit() else 0
    if settings or not place or pool not in POOLS or (layers and not number):
        forms = ", ".join(f"hf:FOLDER{end}" for end in ("", ":layers=N", ":pool=first"))
        raise UserError(f"models names {name!r}; allowed: {forms}, and of the hub hf:NAME")
    return Named(place, number or None, pool)


def located(name: str) -> str:
    """The name with its folder, where it has one, made absolute."""
    found = parse(name)
    moved = str(absolute(found.place)) if found.is_path else found.place
    return str(Named(moved, found.layers, found.pool))


def without_path(name: str) -> str:
    """The name for people who have not this machine: of a folder its last name alone."""
    found = parse(name)
    place = Path(found.place).name if found.is_path else found.place
    return str(Named(place, found.layers, found.pool))


def fed(name: str, tokens: int) -> str:
    """What transformers' own model is fed with, and what the head reads of its answer, in words."""
    read = "mean over `attention_mask`" if parse(name).pool == POOLS[0] else "first token"
    return (
        f"`input_ids` and `attention_mask` of at most {tokens} tokens, as the model's own tokeniser"
        f" makes them; the head reads the {read} of `last_hidden_state`"
    )


def build(name: str, task: Task, *, frozen: bool) -> TextModel:
    """A client model on the weights in the folder, with a new head, which is drawn from torch's
    global generator. frozen: the encoder is the process's, shared, and not trained. Raises
    UserError."""
    named = parse(name)
    if task.kind != TEXT:
        raise UserError(f"model {name!r} is for text, and the inputs are {task}")
    folder = _folder(named)
    stamp = _stamp(named, folder)
    encoder, width, most, base = _encoder(named, folder, stamp)
    if task.shape[0] > most:
        raise UserError(
            f"model {name!r} takes at most {most} tokens, and max-tokens is {task.shape[0]}"
        )
    _check_tokens(named, folder, stamp, task.shape[0])
    known = _embeddings(encoder.model)
    if known and (largest := _largest_id(_tokeniser_stamp(name))) >= known:
        raise UserError(
            f"model {name!r}: its tokeniser has ids up to {largest}, and the model knows {known}"
            " tokens: give it the tokenizer.json that was saved with it"
        )
    module = encoder if frozen else copy.deepcopy(encoder).requires_grad_(True)
    model = TextModel(module, Linear(width, task.classes), None)
    model.base = f"{base}, {reader(name)}" if frozen else reader(name)
    return model


@lru_cache(maxsize=16)
def _check_tokens(named: Named, folder: Path, stamp: Stamps, tokens: int) -> None:
    """Raises UserError unless the encoder reads a text of so many tokens: some need a second text,
    and some have fewer positions than their configuration says."""
    encoder = _encoder(named, folder, stamp)[0]
    # the last token, since the first are kept for padding
    some_token = getattr(encoder.model.config, "vocab_size", FEW_TOKENS) - 1
    device = next(encoder.parameters()).device
    try:
        with torch.no_grad(), seeded(0):  # what is drawn within is not the caller's
            encoder(torch.full((1, tokens), some_token, device=device))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of many types
        said = first_line(str(error))
        raise UserError(
            f"model {str(named)!r} cannot read a text of {tokens} tokens (max-tokens): {said}"
        ) from None


def tokenised(name: str, texts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Texts as a dataset has them, uint8 [n, bytes], as the model of this name takes them, int64
    [n, tokens]. Raises UserError where it has no tokeniser."""
    made = _tokeniser(_tokeniser_stamp(name))
    found = np.full((len(texts), texts.shape[1] // BYTES_A_TOKEN), PADDING, np.int64)
    made.no_padding()
    made.enable_truncation(found.shape[1])
    plain = [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in texts]
    for row, one in zip(found, made.encode_batch(plain), strict=True):
        row[: len(one.ids)] = one.ids
    return found


def tokeniser_sha256(name: str) -> str:
    """Of the file that holds the tokeniser."""
    return file_sha256(_tokeniser_stamp(name))


def reader(name: str) -> str:
    """What the tokeniser is known by: with another one a model reads other tokens."""
    return f"tokeniser sha256:{tokeniser_sha256(name)}"


def _embeddings(model: Any) -> int:
    """How many tokens a model of transformers knows; 0 where it does not say."""
    try:
        return len(model.get_input_embeddings().weight)
    except (AttributeError, NotImplementedError, TypeError):
        return 0


def _tokeniser_stamp(name: str) -> Stamp:
    """Its file as it is now. Raises UserError where there is none."""
    if not is_text(name):
        raise UserError(
            f"model {name!r} has no tokeniser; allowed for text: {', '.join(TEXT.libraries)}"
        )
    file = _folder(parse(name)) / "tokenizer.json"
    if not file.exists():
        raise UserError(
            f"model {name!r} has no tokeniser: {file} is missing, which"
            " transformers saves beside a model"
        )
    return stamp_of(file)


@lru_cache(maxsize=8)
def _tokeniser(stamp: Stamp) -> Any:
    """The one in a file, read once. Raises UserError."""
    file = stamp[0]
    try:
        return _extra("tokenizers").Tokenizer.from_file(file)
    except UserError:
        raise
    except Exception as error:  # the library's own, of one type
        raise UserError(f"{file} holds no tokeniser: {first_line(str(error))}") from None


@lru_cache(maxsize=8)
def _largest_id(stamp: Stamp) -> int:
    """Of the tokens that a tokeniser knows."""
    return max(_tokeniser(stamp).get_vocab().values(), default=0)


def check_allowed(named: Named) -> None:
    """Asks whether a run may name this folder, or model of the hub, here. Raises NotAllowed."""
    if named.is_path:
        permissions.check_file("models", named.place, permissions.WEIGHTS)
    else:
        permissions.check_download("model", str(named))


def _folder(named: Named) -> Path:
    """Where the model's files are; those of the hub are downloaded where they are not in the
    library's cache. Raises UserError."""
    check_allowed(named)
    if named.is_path:
        folder = Path(named.place).expanduser()
        if not folder.is_dir():
            raise UserError(f"model {str(named)!r}: {folder} is no folder")
        return folder
    return _fetched(str(named), named.place)


@lru_cache(maxsize=16)
def _fetched(name: str, place: str) -> Path:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(
                place, allow_patterns=[*_FILES], local_files_only=True
            )
        )
    except Exception:  # of many types: it is not there
        weights.check_reachable(name, huggingface_hub.hf_hub_url(place, "config.json"), _WAY)
    try:
        return Path(huggingface_hub.snapshot_download(place, allow_patterns=[*_FILES]))
    except Exception as error:
        raise weights.unfetched(name, str(error), _WAY) from None


def _stamp(named: Named, folder: Path) -> Stamps:
    """The files as they are now: others under their names are read anew."""
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    if len(files) == 1 or not files[0].exists():
        raise UserError(
            f"model {str(named)!r}: {folder} holds no config.json with *.safetensors, as"
            " transformers saves a model"
        )
    return tuple(map(stamp_of, files))


@lru_cache(maxsize=8)
def _encoder(named: Named, folder: Path, stamp: Stamps) -> tuple[Encoder, int, int, str]:
    """The encoder, frozen and in evaluation mode, its width, the most tokens that it takes, and
    its name with a hash of its files."""
    transformers = _extra("transformers")
    # it tells of layers that are cut off, and draws bars
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        had = config.num_hidden_layers
        if named.layers:
            if named.layers > had:
                raise UserError(f"model {str(named)!r} has {had} layers, and layers={named.layers}")
            config.num_hidden_layers = named.layers
        with seeded(0):  # what is not in the files, and what the caller draws
            model, loaded = transformers.AutoModel.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,  # what lies there is somebody's, and must not run
                use_safetensors=True,
            )
        lacking = sorted(n for n in loaded["missing_keys"] if "pooler" not in n.split("."))
        if lacking:
            raise UserError(
                f"model {str(named)!r}: its files lack {some(lacking, 3)} of the model that"
                " config.json names; allowed: files as transformers saved them with it"
            )
        model = model.float()
    except UserError:
        raise
    except Exception as error:  # of many types
        raise UserError(
            f"model {str(named)!r}: transformers cannot read {folder}: {first_line(str(error))}"
        ) from None
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # which R does not need
    digest = hashlib.sha256()
    for one in stamp:
        digest.update(bytes.fromhex(file_sha256(one)))
    short = Named(folder.name if named.is_path else named.place, named.layers, named.pool)
    return (
        Encoder(model, named.pool).requires_grad_(False).eval(),
        config.hidden_size,
        _most_tokens(config),
        f"{short} sha256:{digest.hexdigest()}",
    )


def _most_tokens(config: Any) -> int:
    """That an encoder takes; 0 or less says that it has no limit, as XLNet's −1."""
    most = int(getattr(config, "max_position_embeddings", 0) or 0)
    return most if most > 0 else 10**9


def _extra(name: str) -> Any:
    return needed(name, f"models hf:… need {name}", "'pfedlora-flwr[text]'")
