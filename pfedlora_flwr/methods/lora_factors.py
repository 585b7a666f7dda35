"""LoRA's factors among a client model's tensors, and the algebra of their products: what the
methods that exchange them share.

An adapted layer computes y = W x + s B (A x), with A [r, n], B [m, r] and s = α/r; of a convolution
A's kernels are flattened."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import ByClient, Tensors, Upload
from pfedlora_flwr.methods.tensors import fixed, weighted_mean
from pfedlora_flwr.models.spec import ModelSpec, specs_of

A, B = ".lora_A.", ".lora_B."
"""In the names of the factors' tensors."""
Product = tuple[Tensor, Tensor]
"""Of one layer: s B [m, r] and A [r, n], float64, whose product is ΔW."""


def scale_of(model: ModelSpec) -> float:
    """s = α/r of a model."""
    return model.alpha / model.lora_rank


def load_some(model: nn.Module, tensors: Tensors) -> None:
    """Sets the tensors that are named; all others stay. Raises RuntimeError for names that the
    model does not have, and for other shapes."""
    if unknown := model.load_state_dict(tensors, strict=False).unexpected_keys:
        raise RuntimeError(f"the model has no {unknown[0]!r}")


def is_factor(name: str) -> bool:
    return A in name or B in name


def held(model: nn.Module, mark: str) -> AbstractContextManager[None]:
    """Within it the trained parameters with that mark in their names take no gradient."""
    return fixed(p for name, p in model.named_parameters() if mark in name)


def mean_of_heads(uploads: ByClient) -> Tensors:
    """The weighted mean of what is no factor: of heads, where these are shared."""
    return weighted_mean(
        {
            k: Upload({n: t for n, t in one.tensors.items() if not is_factor(n)}, one.samples)
            for k, one in uploads.items()
        }
    )


def check_one_base(experiment: Experiment) -> None:
    """Raises UserError if the clients' models differ in more than LoRA's rank."""
    if len({replace(one, lora_rank=1) for one in specs_of(experiment)}) > 1:
        raise UserError(
            f"method {experiment.method} averages LoRA's products inside one base, and the"
            " clients' models differ in more than lora.rank: set models and train to one"
        )


def products(tensors: Tensors, scale: float) -> list[Product]:
    """ΔW of each adapted layer, in two factors, in the tensors' order."""
    return [
        (
            scale * tensors[name.replace(A, B)].double().flatten(1),
            tensors[name].double().flatten(1),
        )
        for name in tensors
        if A in name
    ]


def added(terms: Sequence[tuple[float, Product]]) -> Product:
    """Σ w ΔW of one layer as the product of stacked factors."""
    left = torch.cat([weight * left for weight, (left, _) in terms], dim=1)
    return left, torch.cat([right for _, (_, right) in terms])


def norm(product: Product) -> float:
    """‖ΔW‖_F by two QR decompositions: no m × n matrix is made, and nothing cancels."""
    left, right = product
    return float((torch.linalg.qr(left)[1] @ torch.linalg.qr(right.T)[1].T).norm())


def truncated(product: Product, rank: int) -> Product:
    """The best approximation of ΔW of at most this rank: U Σ and Vᵀ of its singular value
    decomposition, by QR of both factors and an SVD of the small rest. The largest element of each
    right vector is positive."""
    left, right = product
    q_left, r_left = torch.linalg.qr(left)
    q_right, r_right = torch.linalg.qr(right.T)
    u, sigma, vt = torch.linalg.svd(r_left @ r_right.T, full_matrices=False)
    u, sigma, vt = q_left @ u[:, :rank], sigma[:rank], vt[:rank] @ q_right.T
    signs = vt.gather(1, vt.abs().argmax(1, keepdim=True)).sign()
    return u * sigma * signs.T, vt * signs


def error(
    uploads: Sequence[tuple[float, list[Product]]], before: list[Product], after: list[Product]
) -> float | None:
    """‖ΔW* − ΔW after‖ / ‖ΔW* − ΔW before‖ over all layers, with ΔW* = Σ p_k s_k B_k A_k of the
    uploads; None where the uploads changed nothing."""
    lost = moved = 0.0
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        wanted = [(share, product[layer]) for share, product in uploads]
        lost += norm(added([*wanted, (-1.0, new)])) ** 2
        moved += norm(added([*wanted, (-1.0, old)])) ** 2
    return (lost / moved) ** 0.5 if moved else None
