"""The literature's names for feed-forward networks, and the widths that make a fair comparison."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from positionwise.errors import SpecError, unknown_name
from positionwise.spec import FFNSpec

# name: (activation, gated). Gated names: Shazeer 2020, arXiv 2002.05202, eq. 5 and 6; relu2: Primer, arXiv 2109.08668.
VARIANTS: dict[str, tuple[str, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_tanh": ("gelu_tanh", False),
    "silu": ("silu", False),
    "swish": ("silu", False),
    "relu2": ("relu2", False),
    "glu": ("sigmoid", True),
    "bilinear": ("identity", True),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "swiglu": ("silu", True),
    "reglu2": ("relu2", True),
}


def variant(name: str, d_model: int, d_ff: int, match_parameters: bool = False, **options: Any) -> FFNSpec:
    """The spec of a variant by its name.

    Args:
        name: one of `VARIANTS`.
        d_model: width of the input.
        d_ff: width that enters the second map; with ``match_parameters``, that of the ungated block to match.
        match_parameters: give a gated block the width whose parameter count comes closest to that of the ungated
            block of width ``d_ff`` with the same bias flags (of two equally close, the smaller).
        **options: the other fields of `FFNSpec`; ``activation`` and ``is_gated`` belong to the name.

    Raises:
        SpecError: for an unknown name (the message lists the names), or an option that the name decides.
    """
    if name not in VARIANTS:
        raise unknown_name("variant", name, VARIANTS)
    if taken := {"activation", "is_gated"} & options.keys():
        raise SpecError(f"expected the variant {name!r} to decide {' and '.join(sorted(taken))}; got it as an option")
    activation, is_gated = VARIANTS[name]
    spec = FFNSpec(d_model, d_ff, activation=activation, is_gated=is_gated, **options)
    return replace(spec, d_ff=matched_width(spec)) if match_parameters and is_gated else spec


def matched_width(gated: FFNSpec) -> int:
    """The width at which a gated block has about as many parameters as the ungated block of the spec's own width."""
    goal = replace(gated, is_gated=False).parameters
    one, two = (replace(gated, d_ff=width).parameters for width in (1, 2))
    exact = 1 + Fraction(goal - one, two - one)  # the count is linear in the width
    below = max(1, int(exact))
    return below if exact - below <= Fraction(1, 2) else below + 1


def llama_width(d_model: int, multiple_of: int = 256, multiplier: Fraction | int = 1) -> int:
    """The d_ff of a Llama-style configuration that states only d_model.

    Two thirds of 4·d_model, rounded down, times the multiplier, rounded down, then up to a multiple.

    Source: Touvron et al. 2023 (LLaMA), arXiv 2302.13971, section 2.2, and the published model code.
    """
    width = int(multiplier * (2 * 4 * d_model // 3))
    return -(-width // multiple_of) * multiple_of
