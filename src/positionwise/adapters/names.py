"""Names of activations: of the one that a block holds, or of the one that the numbers show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from positionwise.activations import ACTIVATIONS
from positionwise.adapters.evidence import NEAR, TOLERANCE, Link

UNKNOWN = "an elementwise function without a known name"

Function = Callable[[Tensor], Tensor]

_FURTHER: dict[str, Function] = {
    "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z), "leaky_relu": F.leaky_relu, "elu": F.elu, "mish": F.mish,
    "hardswish": F.hardswish, "relu6": F.relu6, "softplus": F.softplus, "selu": F.selu, "celu": F.celu,
}  # fmt: skip
_FUNCTIONS = (F.relu, torch.relu, F.gelu, F.silu, torch.sigmoid, F.sigmoid, torch.tanh, F.tanh)


def library_names() -> dict[str, Any]:
    """The library's table of activations, name to class or (class, arguments); empty where it is not loaded."""
    module = sys.modules.get("transformers.activations")
    return {} if module is None else dict(module.ACT2CLS)


def own_name(activation: Any) -> str | None:
    """The name of a module or function that is known for an activation, by what it is or by what it gives."""
    for name, entry in library_names().items():
        kind, options = entry if isinstance(entry, tuple) else (entry, {})
        if type(activation) is kind and all(getattr(activation, k, v) == v for k, v in options.items()):
            return "silu" if name == "swish" else name
    if type(activation) is nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    matrices = isinstance(activation, nn.Module) and any(p.dim() > 1 for p in activation.parameters())
    if type(activation).__module__ == "torch.nn.modules.activation" and not matrices:
        return type(activation).__name__.lower()
    known = [*((row.function, row.name) for row in ACTIVATIONS.values()), *((f, f.__name__) for f in _FUNCTIONS)]
    by_identity = next((name for function, name in known if function is activation), None)
    return by_identity or _name_by_values(activation)


def _name_by_values(activation: Any) -> str | None:
    """The name of a leaf without parameters that gives what a known function gives, such as a class of the user's."""
    leaf = isinstance(activation, nn.Module) and not activation._modules and not activation._parameters
    if not leaf or activation._buffers or isinstance(activation, nn.Identity | nn.modules.dropout._DropoutNd):
        return None
    z = torch.tensor([*(step / 2 for step in range(-6, 7)), 7.5, 11.0], dtype=torch.double)
    bare = object.__new__(type(activation))  # without the user's hooks
    bare.__dict__.update(activation.__dict__)
    try:
        with torch.no_grad():
            values = type(activation).forward(bare, z.clone())
    except Exception:  # what does not take a vector is no activation
        return None
    if not isinstance(values, Tensor) or values.shape != z.shape:
        return None
    tables = [(row.name, row.function) for row in ACTIVATIONS.values() if row.name != "identity"]
    return next((name for name, function in (*tables, *_FURTHER.items()) if _fits(function, z, values.double())), None)


def is_learned(part: nn.Module) -> bool:
    """Whether a module is an activation that is known and has parameters of its own."""
    return bool(part._parameters) and not part._modules and own_name(part) is not None


def held(module: nn.Module, deep: bool = True) -> Iterator[tuple[str, Any]]:
    """(name, function) of the activations that a block holds itself or, deep, in its parts."""
    for part in module.modules() if deep else (module,):
        for value in (*part._modules.values(), *part.__dict__.values()):
            name = own_name(value) if callable(value) else None
            if name is not None and name != "linear":
                yield name, value


def name_of(link: Link, module: nn.Module) -> str | None:
    """The name of the function that the numbers show: the block's own word for it where it holds one that fits.

    Returns:
        None for a function that is not known.
    """
    held_names = [(name, function) for name, function in held(module)]
    library = [(name, None) for name in library_names()]
    tables = [(row.name, row.function) for row in ACTIVATIONS.values()] + list(_FURTHER.items())
    for name, function in (*held_names, *tables, *library):
        if _fits(_called(name, function), link.z, link.g):
            return _with_offset(name, link) if link.limit is None else _clamped(name, link)
    for name, function in (*held_names, *tables):
        near = link.z < NEAR
        if _fits(_called(name, function), link.z[near], link.g[near]):
            return _clamped(name, link)
    return None


def _called(name: str, function: Any) -> Any:
    if function is None or (isinstance(function, nn.Module) and any(True for _ in function.parameters())):
        entry = library_names().get(name)
        if entry is None:
            return None
        kind, options = entry if isinstance(entry, tuple) else (entry, {})
        with torch.device("cpu"):
            return kind(**options)
    return function


def _fits(function: Any, z: Tensor, g: Tensor) -> bool:
    if function is None:
        return False
    try:
        with torch.no_grad():
            values = function(z.clone())
    except Exception:  # a function that does not take a plain vector is not the one
        return False
    return (
        isinstance(values, Tensor)
        and values.shape == g.shape
        and torch.allclose(values.double(), g, TOLERANCE, TOLERANCE)
    )


def _with_offset(name: str, link: Link) -> str:
    return name if link.offset == 0 else f"{name}, up + {link.offset:g}"


def _clamped(name: str, link: Link) -> str:
    """The clamped gates, such as gpt-oss's."""
    up = f"(up + {link.offset:g})" if link.offset else "up"
    gate = {"quick_gelu": "gate · σ(1.702 · gate)", "silu": "gate · σ(gate)"}.get(name, f"{name}(gate)")
    swiglu = "swiglu" if name in {"quick_gelu", "silu"} else name
    return f"clamped {swiglu}: {up} · {gate}" + (f", limit {link.limit:g}" if link.limit is not None else "")
