"""What recorded numbers prove: through which function one map's output reaches the next one's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 2e-5
"""Relative; some blocks compute in float32 whatever they are given."""
COLUMNS = 256
"""How many columns of a wide tensor are compared: enough to meet every pair of values many times."""
NEAR = 5.0
"""Below this the published clamps do nothing."""


@dataclass(frozen=True)
class Link:
    """Elementwise between two maps: g(z), or g(gate) · (up + offset)."""

    z: Tensor
    """(points,) where the function is known."""
    g: Tensor
    """(points,) its values there."""
    is_gated: bool = False
    gate_half: str | None = None
    """Which half of a fused map is activated: first, second, even or odd; None for maps of their own."""
    activated: int = 0
    """Which of two maps is activated."""
    offset: float = 0.0
    """What is added to the linear branch."""
    both: bool = False
    """Whether the other branch is a function too, and not linear."""
    limit: float | None = None
    """At which the linear branch is clamped."""

    @property
    def is_identity(self) -> bool:
        """Whether nothing stands between the maps."""
        return bool(torch.allclose(self.g, self.z, rtol=TOLERANCE, atol=TOLERANCE))

    @property
    def is_linear(self) -> bool:
        """Whether the function is a multiple of its argument."""
        return _affine(self.z, self.g)


def link(gave: list[Tensor], read: Tensor) -> Link | None:
    """The function from maps' outputs to what the next map read, or None where there is none, elementwise.

    Args:
        gave: one output (n, f) or fused (n, 2f), or two outputs (n, f).
        read: (n, f).
    """
    if len(gave) == 2:
        if any(out.shape != read.shape for out in gave):
            return None
        return _gated(gave[0], gave[1], read, (None, None))
    (out,) = gave
    width = read.shape[-1]
    if out.shape == read.shape:
        return _alone(out, read)
    if out.shape != (read.shape[0], 2 * width):
        return None
    return _gated(out[:, :width], out[:, width:], read, ("first", "second")) or _gated(
        out[:, ::2], out[:, 1::2], read, ("even", "odd")
    )


def _alone(out: Tensor, read: Tensor) -> Link | None:
    points, values = _function([out], read)
    return None if values is None else Link(points[:, 0], values)


def _function(outs: list[Tensor], read: Tensor) -> tuple[Tensor, Tensor | None]:
    """(points, value) of read as a function of the outs; None where equal points have different values."""
    columns = torch.arange(0, read.shape[1], -(-read.shape[1] // COLUMNS) * 2 - 1)  # odd steps: both of interleaved
    flats = [out[:, columns].flatten().double() for out in outs]
    group, kinds = torch.zeros(len(flats[0]), dtype=torch.long), []
    for flat in flats:
        values, index = torch.unique(flat, return_inverse=True)
        group = group * len(values) + index
        kinds.append(values)
    flat = read[:, columns].flatten().double()
    size = len(kinds[0]) * (len(kinds[1]) if len(kinds) > 1 else 1)
    high = torch.full((size,), -torch.inf, dtype=torch.double).scatter_reduce(0, group, flat, "amax")
    low = torch.full((size,), torch.inf, dtype=torch.double).scatter_reduce(0, group, flat, "amin")
    met = torch.isfinite(high) & torch.isfinite(low)
    points = torch.cartesian_prod(*kinds).reshape(size, len(kinds))[met]
    high, low = high[met], low[met]
    equal = bool(((high - low) <= TOLERANCE * (1 + high.abs())).all()) and len(points) <= 0.8 * len(flat)
    return points, high if equal else None


def _gated(first: Tensor, second: Tensor, read: Tensor, halves: tuple[str | None, str | None]) -> Link | None:
    """Which of two numbers is activated: the one in which the product is not affine."""
    points, values = _function([first, second], read)
    if values is None:
        return None
    bends = [_bends(points, values, axis) for axis in (0, 1)]
    if None in bends:
        return None
    if bends[0] and bends[1]:
        return _two_functions(points, values, halves)
    activated = 1 if bends[1] else 0
    found = _factor(points, values, activated)
    if found is None:
        return None
    z, g, offset, limit = found
    if not _explains(points, values, activated, found):
        return None
    bilinear = not any(bends)
    return Link(z, g, True, None if bilinear else halves[activated], activated, offset, limit=limit)


def _two_functions(points: Tensor, values: Tensor, halves: tuple[str | None, str | None]) -> Link | None:
    """Of a product of two functions, such as one with soft caps on both sides: what bends more is the gate."""
    near = (points < NEAR).all(-1)
    first, second = (torch.unique(points[near, axis]) for axis in (0, 1))
    if int(near.sum()) != len(first) * len(second):
        return None
    table = values[near].reshape(len(first), len(second))  # points are sorted by the first, then by the second
    row, column = divmod(int(table.abs().argmax()), len(second))
    if not torch.allclose(table * table[row, column], table[:, column, None] * table[row], rtol=1e-4, atol=1e-6):
        return None
    bent = [_bend(first, table[:, column]), _bend(second, table[row])]
    activated = int(bent[1] > bent[0])
    both = max(bent) < 3 * min(bent)
    half = None if both else halves[activated]
    z, other = (first, second) if activated == 0 else (second, first)
    place = int(other.abs().argmin())
    g = (table[:, place] if activated == 0 else table[place]) / other[place]  # the other is nearly its argument there
    return Link(z, g, True, half, activated, both=both)


def _bend(z: Tensor, u: Tensor) -> float:
    """The largest distance of u from a line through its ends, in parts of its range."""
    line = u[0] + (u[-1] - u[0]) / (z[-1] - z[0]) * (z - z[0])
    return float((u - line).abs().max() / (u.max() - u.min()))


def _explains(
    points: Tensor, values: Tensor, activated: int, found: tuple[Tensor, Tensor, float, float | None]
) -> bool:
    """Whether g(gate) · (up + offset) gives the values back: a sum of the two numbers does not."""
    z, g, offset, _ = found
    near = (points < NEAR).all(-1) & torch.isin(points[:, activated], z)
    index = torch.searchsorted(z, points[near, activated].contiguous())
    expected = g[index] * (points[near, 1 - activated] + offset)
    return bool(torch.allclose(values[near], expected, rtol=1e-3, atol=1e-3))


def _bends(points: Tensor, values: Tensor, axis: int) -> bool | None:
    """Whether the values are anything but affine along an axis; None where they do not depend on it."""
    other, bent, moves = points[:, 1 - axis], False, False
    for fixed in torch.unique(other):
        chosen = (other == fixed) & (points[:, axis] < NEAR) & (fixed < NEAR)
        z, u = points[chosen, axis], values[chosen]
        if len(z) >= 3:
            bent |= not _affine(z, u)
            moves |= bool((u.max() - u.min()) > 1e-6)
    return bent if moves else None


def _affine(z: Tensor, u: Tensor) -> bool:
    """Whether u = αz + β up to rounding, on the points below the clamps."""
    z, u = z[z < NEAR], u[z < NEAR]
    slope = (u[-1] - u[0]) / (z[-1] - z[0])
    return bool(torch.allclose(u, u[0] + slope * (z - z[0]), rtol=TOLERANCE, atol=TOLERANCE))


def _factor(points: Tensor, values: Tensor, activated: int) -> tuple[Tensor, Tensor, float, float | None] | None:
    """g, the linear branch's offset and its clamp, from values = g(gate) · (up + offset)."""
    gates, ups = points[:, activated], points[:, 1 - activated]
    z, g, offsets, limits = [], [], [], []
    for gate in torch.unique(gates):
        near, far = (gates == gate) & (ups < NEAR), (gates == gate) & (ups >= NEAR)
        if near.sum() < 2:
            continue
        up, u = ups[near], values[near]
        slope = (u[-1] - u[0]) / (up[-1] - up[0])
        z.append(gate)
        g.append(slope)
        if slope.abs() > 1e-3:
            offsets.append(u[0] / slope - up[0])
            seen = values[far] / slope - offsets[-1]
            limits.append(torch.where(seen < ups[far] - 1e-3, seen, torch.inf))
    if len(z) < 3 or not offsets:
        return None
    offset = torch.stack(offsets).median().item()
    beyond = torch.cat(limits)
    limit = round(beyond.median().item(), 3) if len(beyond) and bool(torch.isfinite(beyond).all()) else None
    return torch.stack(z), torch.stack(g), round(offset, 4) + 0.0, limit
