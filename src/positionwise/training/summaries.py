"""TensorBoard histograms of the hidden units: how many are at work in each layer, as tensor2tensor shows it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState

from positionwise.hidden_density import Densities, density

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVERY = 100
"""Steps from one summary to the next."""


class Summaries(TrainerCallback):
    """Writes ``hidden_density_logit/<network>`` of the first step's batch and of every 100th step's.

    One value for each channel, over all positions of the batch, padding too. Between these steps the model has no
    hooks, so that its blocks take the path that they always take.

    Source: tensor2tensor v1.0.14, ``common_layers.conv_hidden_relu``.
    """

    def __init__(self, model: nn.Module, writer: SummaryWriter) -> None:
        self.model = model
        self.writer = writer
        self.hooks = ExitStack()
        self.measured = Densities()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Look at the step that begins, where it is due."""
        step = state.global_step + 1
        if step == 1 or step % EVERY == 0:
            self.measured = self.hooks.enter_context(density(self.model))

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Write what was seen of the step that ends, and look away."""
        self.hooks.close()
        for path, network in self.measured.items():
            if network.logit is not None:
                self.writer.add_histogram(f"hidden_density_logit/{path}", network.logit, state.global_step)
        self.measured = Densities()
