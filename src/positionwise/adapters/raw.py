"""A network whose weights are matrices of the block itself, without modules for its maps."""

from __future__ import annotations

from torch import nn

from positionwise.adapters.mixtures import chain_of_tensors
from positionwise.adapters.names import UNKNOWN, name_of
from positionwise.adapters.running import run
from positionwise.adapters.sites import Site
from positionwise.spec import Component


def raw_site(path: str, block: nn.Module) -> Site | None:
    """The site of a block that multiplies by its own matrices, if its code runs and shows one."""
    matrices = {name: p for name, p in block.named_parameters() if p.dim() == 2}
    tensors = {id(p): name for name, p in matrices.items()}
    for width in dict.fromkeys(size for p in matrices.values() for size in p.shape):
        for record in run(block, width):
            found = chain_of_tensors(record, set(tensors))
            if found is None or found.d != width:
                continue
            first, second = [tensors[key] for key in found.first], tensors[found.second]
            if block.get_parameter(second).numel() == width * found.f:
                name = name_of(found.link, block) or UNKNOWN
                return _site(path, block, (first, second), (width, found.f), name, found.link.gate_half)
    return None


def _site(
    path: str,
    block: nn.Module,
    names: tuple[list[str], str],
    widths: tuple[int, int],
    activation: str,
    half: str | None,
) -> Site:
    (first, second), (d, f) = names, widths
    gated = len(first) == 2 or block.get_parameter(first[0]).numel() == 2 * d * f
    rows = [
        Component(f"Map {name}", _shape(block.get_parameter(name)), block.get_parameter(name).numel()) for name in first
    ]
    rows.append(Component(f"Map {second}", _shape(block.get_parameter(second)), d * f))
    vectors = {name: p for name, p in block.named_parameters() if p.dim() == 1 and p.numel() in (d, f, 2 * f)}
    rows += [Component(f"Vector {name}", f"{p.numel():,}", p.numel()) for name, p in vectors.items()]
    counted = {*first, second, *vectors}
    layout = "nn.Parameter " + ", ".join(str(tuple(block.get_parameter(name).shape)) for name in (*first, second))
    gate = f"separate: {first[0]} activated, {first[1]} linear" if len(first) == 2 else None
    return Site(
        path, block, d, f, activation, gated, half, gate, layout, tuple(rows),
        tuple((n, p) for n, p in block.named_parameters() if n in counted), biases=(bool(vectors), bool(vectors)),
        notes=("vectors of the block are counted as its biases",) if vectors else (),
    )  # fmt: skip


def _shape(parameter: nn.Parameter) -> str:
    return " × ".join(f"{size:,}" for size in parameter.shape)
