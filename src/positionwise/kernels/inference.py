"""The network where nothing is saved for backward: products by the fastest engine, everything else in place."""

from __future__ import annotations

from torch import Tensor

from positionwise.kernels import break_even, product, sparse
from positionwise.kernels.dense import Weights
from positionwise.kernels.dropout import Masks, draw_seed
from positionwise.kernels.elementwise import TABLE


def infer(x: Tensor, w: Weights, activation: str, dropout: float, skip: bool | None = False) -> Tensor:
    """The output (T, d_out) of x (T, d_model).

    ``skip`` says whether products with hidden units that are zero are skipped; None: where it pays.
    """
    f, fused = TABLE[activation], activation == "relu"
    if fused and w.v is None and not dropout and skip is False:
        return product.network(x, w.w1, w.b1, w.w2, w.b2)
    masks = Masks(dropout, draw_seed() if dropout else None)
    begun = sparse.begin(w, len(x)) if skip else None
    z = product.linear(x, w.w1, w.b1, relu=fused)
    if not fused:
        f.keep_(z)
    v = None if w.v is None else product.linear(x, w.v, w.c)
    if skip is None and break_even.pays(z, w, training=False):
        begun = sparse.begin(w, len(x))
    if begun is not None:
        return sparse.second(begun, masks.apply_(z), v, activation, masks)
    if not fused:
        f.hidden(z, z)
    if v is not None:
        z.mul_(v)
    return product.linear(masks.apply_(z), w.w2, w.b2)
