"""What a proven chain is: a layer's feed-forward network, or something else that is built alike."""

from __future__ import annotations

import inspect
from functools import cache
from itertools import combinations
from types import FunctionType
from typing import Any

from torch import nn

from positionwise.adapters.dense import Chain
from positionwise.adapters.maps import Map, linear_map
from positionwise.adapters.names import UNKNOWN, held
from positionwise.adapters.running import is_norm

Above = tuple[tuple[str, nn.Module], ...]
"""(path, module) of everything that holds a block, from the model down."""
_ATTENDS = {"softmax", "scaled_dot_product_attention", "get_interface", "matmul"}
_CHOOSES = {"topk", "argmax", "one_hot", "index_add_", "index_add", "scatter", "scatter_"}
_ACTIVATES = {"silu", "gelu", "relu", "tanh", "sigmoid", "glu", "leaky_relu", "elu", "hardswish", "mish", "softplus"}


def not_a_network(chain: Chain, both: set[str], path: str, block: nn.Module, above: Above) -> str | None:
    """Why a proven chain is not a layer's feed-forward network; None if it is one."""
    first, second = chain.first[0], chain.second
    text = f"{first.wide_in:,} → {second.wide_in:,} → {second.wide_out:,}, {chain.activation}"
    if first.wide_in < 4:
        return f"it reads {first.wide_in} numbers, such as coordinates ({text})"
    if both:
        return f"a perceptron of three maps or more ({text})"
    if first.wide_in != second.wide_out:
        return f"its output is not as wide as its input ({text}): a projection or a head"
    if "nn.Conv" in first.layout and _convolutional(chain, block, above):
        return f"a convolutional block ({text})"
    if chain.gates:
        return f"its output passes through another function: a gate ({text})"
    if above and _is_attention(above[-1][1], first.wide_in):
        return f"a part of attention ({text})"
    if chain.activation == UNKNOWN and 8 * second.wide_in <= first.wide_in:
        return f"a narrow bottleneck, and what stands in it is not known ({text})"
    if above and is_norm(above[-1][1]):
        return f"a part of a normalisation ({text})"
    if path and not _in_a_layer(path, block, chain, above):
        return f"it stands outside of the layers ({text})"
    return None


def _is_attention(module: nn.Module, width: int) -> bool:
    """Whether a module's own code attends: it does not choose among experts, and it is no layer, which has a norm."""
    words = own_words(module)
    if not _ATTENDS & words or _CHOOSES & words:
        return False
    return width not in [p.numel() for part in module.children() if is_norm(part) for p in part.parameters()]


def looks_like_one(block: nn.Module, maps: list[Map]) -> bool:
    """Whether maps of a module that holds whole stacks might be a network: they fit, and an activation is about."""
    fits = any(one.wide_in == two.wide_out and one.wide_out == two.wide_in for one, two in combinations(maps, 2))
    return fits and bool(_ACTIVATES & own_words(block) or any(True for _ in held(block, deep=False)))


def _convolutional(chain: Chain, block: nn.Module, above: Above) -> bool:
    wide = chain.first[0].kernel and chain.first[0].wide_in == chain.second.wide_in
    listed = bool(above) and isinstance(above[-1][1], nn.ModuleList | nn.Sequential)
    alone = not any(_mixes(part) for part in block.children())
    return alone and (bool(wide) or listed or chain.evidence == "structure")


def _in_a_layer(path: str, block: nn.Module, chain: Chain, above: Above) -> bool:
    """Whether a block is an element of a stack, or stands beside something that mixes positions."""
    if any(part.isdigit() for part in path.split(".")):
        return True
    inside = {id(entry.module) for entry in chain.maps}
    parent = above[-1][1]
    if _CHOOSES & own_words(parent):
        return True  # beside experts
    around = [*block.children(), *parent.children()]
    if any(_mixes(part) for part in around if id(part) not in inside and part is not block):
        return True
    normed = any(
        is_norm(p) and chain.first[0].wide_in in [w.numel() for w in p.parameters()] for p in parent.children()
    )
    return normed and not holds_a_stack(parent)  # a layer by itself


def _mixes(part: nn.Module) -> bool:
    """Whether a part is attention, or built like it: three maps or more, and no stack of layers."""
    if isinstance(part, nn.MultiheadAttention):
        return True
    if any(isinstance(child, nn.ModuleList | nn.ModuleDict) for child in part.modules()):
        return False
    maps = sum(linear_map(child) is not None for child in part.modules())
    return maps >= 3 or (maps > 0 and bool(_ATTENDS & _words(part)))


def _words(part: nn.Module) -> set[str]:
    """Names that the code of a part, and of the parts in it, speaks of."""
    return {name for inner in part.modules() for name in own_words(inner)}


def own_words(module: nn.Module) -> frozenset[str]:
    """The same of a module's own forward alone; nothing where it is no Python, such as a scripted module's."""
    kind: Any = type(module)
    return _words_of(kind)


@cache
def _words_of(kind: Any) -> frozenset[str]:
    forward = getattr(kind, "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None) if isinstance(forward, FunctionType) else None
    return frozenset(() if code is None else code.co_names)


def holds_a_stack(block: nn.Module) -> bool:
    """Whether whole layers stand in lists inside: then the block is a model, not a layer."""
    lists = (part for part in block.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    return any(sum(linear_map(m) is not None for m in layer.modules()) >= 3 for part in lists for layer in part)


def mixes_only(layer: nn.Module) -> bool:
    """Whether a list's element is known to be something else: few maps, or attention without an activation."""
    maps = [entry for entry in map(linear_map, layer.modules()) if entry is not None]
    words = _words(layer)
    if len(maps) < 2:
        return True
    return bool(_ATTENDS & words) and not (_ACTIVATES & words) and not any(True for _ in held(layer))


def is_convolutional(layer: nn.Module) -> bool:
    """Whether all its maps are convolutions."""
    maps = [entry for entry in map(linear_map, layer.modules()) if entry is not None]
    return all("nn.Conv" in entry.layout for entry in maps)


def mixes_positions(chain: Chain, block: nn.Module, above: Above) -> str | None:
    """Why a network does not act on each position by itself, or None where it does as far as can be seen."""
    wide = next((entry.kernel for entry in chain.maps if entry.kernel), None)
    if wide is not None:
        return f"not position-wise: a convolution of {' × '.join(map(str, wide))} positions"
    if not above or isinstance(above[-1][1], nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return None
    parent = above[-1][1]
    beside = [part for part in parent.children() if part is not block]
    wrapped = [child for part in beside if len(part._modules) == 1 for child in part.children()]
    norms = [*beside, *wrapped]
    widths = {max(p.shape) for part in norms if is_norm(part) for p in part.parameters()}
    width = chain.first[0].wide_in
    if not widths or width in widths:
        return None
    near = " and ".join(f"{size:,}" for size in sorted(widths))
    return f"not position-wise: it reads {width:,} numbers where the normalisations beside it have {near}"
