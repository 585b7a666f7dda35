"""Small pretrained models, written to files: what clients' models begin with, without a
download."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.runs.trained import Trained
from tests.plain import make

CLASSES = 20
"""Of their own classifiers."""


def base(folder: Path, name: str = "test_resnet", seed: int = 0) -> str:
    """The name of one of timm's models for tests, with weights in a file of `folder`: random ones,
    with statistics of batch normalisation that are not the usual."""
    import timm

    torch.manual_seed(seed)
    module = timm.create_model(name, num_classes=CLASSES).train()
    side = module.pretrained_cfg["input_size"][1] if "vit" in name else 32
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(8, 3, side, side) * 2 + 1)
    file = folder / f"{name}-{seed}.safetensors"
    safetensors.torch.save_file(module.state_dict(), file)
    return f"timm:{name}:weights={file}"


_BOTH, _HALVES = ("a", "b", "c", "the"), ("goal puck ice game team season", "motor bike wheel ride")
WORDS = (*_BOTH, *_HALVES[0].split(), *_HALVES[1].split(), "road", "engine")
"""What texts of tests are made of; a tokeniser has them all."""


def text_base(folder: Path, width: int = 32, layers: int = 3, extra: str = "") -> str:
    """The name of a small BERT, drawn at random, with a tokeniser of its own in a folder.

    extra: words that this one's tokeniser has before the others'."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    place = folder / f"bert-{width}-{layers}"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *extra.split(), *WORDS]
    words += [f"w{i}" for i in range(120 - len(words))]
    tokeniser = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
    tokeniser.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=64,
    )
    torch.manual_seed(width)
    BertModel(config).save_pretrained(place)
    tokeniser.save(str(place / "tokenizer.json"))
    return f"hf:{place}"


def documents(file: Path, n: int = 60) -> None:
    """A table of texts of two classes and two owners."""
    import csv

    draws = torch.Generator().manual_seed(0)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["message", "label", "poster"])
        for i in range(n):
            half = WORDS[4 + 6 * (i % 2) : 10 + 6 * (i % 2)]
            drawn = torch.randint(0, len(half), (3 + i % 9,), generator=draws).tolist()
            text = " ".join(["the", *(half[j] for j in drawn)]) + (",\n a" if i % 3 else "")
            writer.writerow([text, ["hockey", "motorcycles"][i % 2], f"p{i % 4 // 2}"])


def untrained(method: str, **keys: object) -> Trained:
    """Client 1 of ten classes, as it begins."""
    of = make(from_flat({"method": method, **keys}))
    about = {"mean": [0.5] * 3, "std": [0.25] * 3, "class_names": list("0123456789")}
    about |= {"versions": {}, "site": {}}
    module = of.private_init(1, 5).eval()
    return Trained(1, 3, "0" * 64, of.experiment, of, module, about, None)
