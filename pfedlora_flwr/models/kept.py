"""The part of a module that a client keeps: everything that is trained or can change.

The rest is its base: frozen parts that came from elsewhere, named by a hash, neither stored nor
sent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.models.model import (
    TENSORS,
    ClientModel,
    given_names,
    modules_outside,
    state_outside,
)


def kept(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters and the buffers that can change, detached, by their names in the
    state_dict and in its order."""
    return state_outside(module, given_names(module))


def stored(module: nn.Module) -> dict[str, Tensor]:
    """The same on the CPU, as it is written to disk."""
    return {name: tensor.cpu().contiguous() for name, tensor in kept(module).items()}


def load_kept(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Sets what `kept` names; the base stays. Raises RuntimeError, as load_state_dict does, for
    other names or shapes."""
    own = module.state_dict()
    module.load_state_dict({name: own[name] for name in given_names(module)} | tensors)


def base_of(module: nn.Module) -> str:
    """What the module's base is known by: a name that the model carries, which of text names the
    tokeniser, too, or the SHA-256 of its tensors. Empty if there is none."""
    bases = []
    for _, part in modules_outside(module):
        if isinstance(part, ClientModel) and (part.given or part.base):
            if not part.base:
                whole = part.state_dict()
                own = {name: whole[name].cpu() for name in whole if name in part.given}
                part.base = f"{TENSORS}{tensors_sha256(own)}"
            bases.append(part.base)
    return ", ".join(dict.fromkeys(bases))


def restore(what: str, module: nn.Module, tensors: dict[str, Tensor], base: str) -> None:
    """Sets what was stored of a model that was trained on `base`. One stored with all of its
    tensors, as older versions of this package did, needs no base.

    Raises UserError if the module's base is another one; `what` names the stored model. Raises
    RuntimeError for another model.
    """
    whole = given_names(module) <= tensors.keys()
    found = base_of(module)
    if found != base and (base or not whole):
        raise UserError(
            f"{what} was trained on the base {base or 'none'}, and the model built here has"
            f" {found or 'none'}: its original files are needed"
        )
    load_kept(module, tensors)


def frozen_parts(module: nn.Module) -> tuple[nn.Module, ...]:
    """The largest parts that have parameters and train none of them, or none but LoRA's."""
    trained = [parameter.requires_grad for parameter in module.parameters()]
    if trained and not any(trained):
        return (module,)
    adapted = module.adapted if isinstance(module, ClientModel) else ()
    return adapted + tuple(
        part for child in module.children() if child not in adapted for part in frozen_parts(child)
    )


def frozen_names(module: nn.Module) -> set[str]:
    """The names in the state_dict of parameters that are not trained, and of the buffers of frozen
    parts."""
    inside = {id(inner) for part in frozen_parts(module) for inner in part.modules()}
    frozen = set()
    for at, part in module.named_modules(remove_duplicate=False):
        tensors = [name for name, p in part.named_parameters(recurse=False) if not p.requires_grad]
        if id(part) in inside:
            tensors += [name for name, _ in part.named_buffers(recurse=False)]
        frozen |= {f"{at}.{name}" if at else name for name in tensors}
    return frozen & module.state_dict().keys()


def still_parts(model: ClientModel) -> tuple[nn.Module, ...]:
    """Of its frozen parts those of which every tensor is given."""
    return tuple(
        part
        for at, part in model.named_modules()
        if any(part is one for one in model.frozen)
        and {f"{at}.{name}" for name in part.state_dict()} <= model.given
    )


def same_in_both(one: nn.Module, other: nn.Module) -> set[str]:
    """The frozen names whose tensors two builds of a model have in common: they came from
    elsewhere, and were not drawn."""
    left, right = one.state_dict(), other.state_dict()
    return {
        name
        for name in frozen_names(one) & frozen_names(other)
        if torch.equal(left[name], right[name])
    }
