"""What a training is asked for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from positionwise.errors import SpecError
from positionwise.spec import FFNSpec


@dataclass(frozen=True)
class TrainOptions:
    """Sizes, schedule and budget; the defaults suit 20 minutes of short sentences on two cores.

    Raises:
        SpecError: for a value that no training can have.
    """

    minutes: float | None = 20.0
    """Time for steps, validation and checkpoints; None for no limit. The learning rate reaches zero at its end."""
    max_steps: int | None = None
    """Most steps; None for no limit."""
    variant: str = "relu"
    d_model: int = 192
    d_ff: int = 768
    """With a gated variant, the width of the ungated network whose parameters it matches."""
    num_heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    vocab_size: int = 4000
    norm_first: bool = True
    dropout: float = 0.1
    label_smoothing: float = 0.1
    batch_tokens: int = 3072
    """Padded ids in a batch, on each side."""
    learning_rate: float = 2e-3
    """The peak, reached after the warm-up."""
    warmup: float = 0.1
    """Share of the budget in which the rate rises; it then falls in a straight line to zero."""
    weight_decay: float = 0.01
    max_length: int = 128
    """Ids of a sentence; longer pairs are not learned from, and their number is told."""
    validation: int = 500
    """Sources that are watched while training."""
    held_out: int = 2000
    """Sources that are kept to judge by."""
    checkpoint_minutes: float = 5.0
    summaries: bool = False
    """Whether TensorBoard gets histograms of the hidden units; see `positionwise.training.summaries`."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what no later check would."""
        if self.minutes is None and self.max_steps is None:
            raise SpecError("expected a number of minutes or of steps; got neither")
        for name in ("minutes", "checkpoint_minutes", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SpecError(f"expected {name} to be above 0; got {value!r}")
            if value == math.inf:
                raise SpecError(f"expected {name} to be finite; got {value!r}")
        for name, least in (("max_steps", 1), ("vocab_size", 259), ("batch_tokens", 1), ("max_length", 2),
                            ("validation", 1), ("held_out", 1)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < least:
                raise SpecError(f"expected {name} to be at least {least}; got {value!r}")
        if not 0 <= self.seed < 2**32:
            raise SpecError(f"expected seed to be from 0 to 2**32 - 1; got {self.seed!r}")
        if not 0 <= self.weight_decay < math.inf:
            raise SpecError(f"expected weight_decay to be at least 0 and finite; got {self.weight_decay!r}")
        if not 0 <= self.warmup < 1:
            raise SpecError(f"expected warmup to be at least 0 and below 1; got {self.warmup!r}")

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON would hold them."""
        return asdict(self)

    def model_config(self, vocab_size: int) -> Any:
        """The `TransformerConfig` of these options for a vocabulary."""
        from positionwise.training.tokenizer import EOS, PAD
        from positionwise.transformer import TransformerConfig, variant_fields

        config = TransformerConfig(
            **variant_fields(self.variant, self.d_model, self.d_ff, match_parameters=True),
            vocab_size=vocab_size, num_heads=self.num_heads, encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers, norm_first=self.norm_first, dropout=self.dropout,
            embedding_dropout=self.dropout, label_smoothing=self.label_smoothing, mask_pad_embedding=False,
            pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD,
        )  # fmt: skip
        layers = config.encoder_layers + config.decoder_layers
        if self.summaries and not (layers and isinstance(config.feed_forward_spec(), FFNSpec)):
            raise SpecError(f"expected FeedForward blocks to write summaries of; got none in {layers} layers")
        return config
