"""The feed-forward network with the axes of tensor2tensor's wide kernels."""

from __future__ import annotations

from torch import Tensor

from positionwise.errors import InputError
from positionwise.feedforward import FeedForward


class AxisOneFeedForward(FeedForward):
    """`FeedForward` with tensor2tensor's axes: kernels (h, w) convolve axis 1 by h, whatever the rank.

    Its ``spec`` does not say so: ``FeedForward.from_spec(spec)`` is a block that convolves the two axes before d_model,
    which of three axes are batch and positions. ``AxisOneFeedForward.from_spec(spec)`` is this block again, and
    `load_part` makes the one that was saved.

    Shapes: (B, S, d_model) → (B, S, d_out), or (B, H, W, d_model) → (B, H, W, d_out).

    Raises:
        InputError: for another rank, and for a kernel with w > 1 that has no axis to convolve.

    Source: tensor2tensor v1.0.14, ``common_layers.conv_hidden_relu``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network; three axes get a fourth of width 1 and lose it again."""
        if x.dim() == 4:
            return super().forward(x)
        if x.dim() != 3:
            raise InputError(f"expected an input of 3 or 4 axes; got {tuple(x.shape)}")
        widths = [size[1] for size in (self.spec.kernel_size, self.spec.second_kernel_size) if isinstance(size, tuple)]
        if self.spec.padding == "left" and max(widths) > 1:  # the original leaves an axis of width 1 without padding
            raise InputError(f"expected an input of 4 axes for kernels of width {max(widths)}; got {tuple(x.shape)}")
        return super().forward(x.unsqueeze(2)).squeeze(2)
