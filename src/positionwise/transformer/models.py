"""The translation Transformer as a transformers model: forward, loss, generation with a cache, save and load."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from positionwise.errors import InputError
from positionwise.feedforward import SeparableLinear, published_init
from positionwise.functional import glorot_uniform_
from positionwise.transformer.attention import additive_mask
from positionwise.transformer.config import TransformerConfig
from positionwise.transformer.dropout import Dropout
from positionwise.transformer.embedding import Positions, embed
from positionwise.transformer.layers import DecoderLayer, EncoderLayer, decoder_mask, layer_norm
from positionwise.transformer.parameter_attention import ParameterAttention

IGNORED = -100
"""A label that takes no part in the loss, beside the padding id."""


class Encoder(nn.Module):
    """The stack of encoder layers: (B, S, d_model) → (B, S, d_model)."""

    main_input_name = "input_ids"  # generation looks for it here

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.encoder_layers))
        self.norm = layer_norm(config) if config.norm_first else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply every layer; mask (B, S) or (B, S, S), true = keep."""
        added = additive_mask(mask, x.dtype)
        for layer in self.layers:
            x = layer(x, added)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """The stack of decoder layers: (B, T, d_model) → (B, T, d_model)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.decoder_layers))
        self.norm = layer_norm(config) if config.norm_first else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        memory_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Tensor:
        """Apply every layer; the arguments are those of `DecoderLayer`."""
        own = decoder_mask(x, mask, cache)
        other = additive_mask(memory_mask, x.dtype)
        for layer in self.layers:
            x = layer(x, memory, own, other, cache)
        return x if self.norm is None else self.norm(x)


class TransformerForTranslation(PreTrainedModel, GenerationMixin):
    """An encoder-decoder Transformer that reads one language and writes another.

    Source: Vaswani et al. 2017, arXiv 1706.03762; the defaults are tensor2tensor's ``transformer_base``.
    """

    config: TransformerConfig
    config_class = TransformerConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: TransformerConfig) -> None:
        config.check()  # fields may have been set since the configuration was made
        super().__init__(config)
        self.source_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if not config.share_embeddings:
            self.target_embedding = nn.Embedding(config.target_size, config.d_model)
        self.source_positions = Positions(config)
        self.target_positions = Positions(config)
        if config.target_spaces:
            self.target_space_embedding = nn.Embedding(config.target_spaces, config.d_model)
        self.embedding_dropout = Dropout(config.embedding_dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output_dropout = Dropout(config.output_dropout)
        if not config.tie_word_embeddings:
            self.output = nn.Linear(config.d_model, config.target_size, bias=config.output_bias)
        self.post_init()
        if config.positions == "learned":
            self.generation_config.max_length = config.max_positions

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput:
        """Read the source, and what the decoder has written, and score the next words.

        Args:
            input_ids: source ids (B, S).
            attention_mask: (B, S), true = keep; without it the ids equal to ``pad_token_id`` are masked.
            decoder_input_ids: what the decoder reads, already shifted (B, T); made from labels where it is missing.
            labels: target ids (B, T); padding ids and −100 take no part in the loss.
            encoder_outputs: of an earlier call, instead of input_ids.
            cache: keys and values of earlier positions; decoder_input_ids are then the new ones only.
            use_cache: whether to make a cache where none is given.
            return_dict: accepted because generation passes it; the result is always a ``Seq2SeqLMOutput``.

        Returns:
            ``loss`` (with labels), ``logits`` (B, T, target vocabulary), ``cache``, ``encoder_last_hidden_state``.

        Raises:
            InputError: when neither input_ids nor encoder_outputs, or neither decoder_input_ids nor labels, are given,
                and for a cache where the feed-forward networks themselves read earlier positions.
        """
        if cache is not None and not self.config.is_cacheable:
            raise InputError(f"expected no cache with ffn_layer={self.config.ffn_layer!r}: its kernels read earlier "
                             "positions, which the cache does not hold; got one")  # fmt: skip
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids != self.config.pad_token_id
        if encoder_outputs is None:
            encoder_outputs = BaseModelOutput(last_hidden_state=self.encode(input_ids, attention_mask))
        memory = cast(Tensor, encoder_outputs[0])
        if decoder_input_ids is None:
            decoder_input_ids = self.shift_right(labels)
        if use_cache and cache is None and labels is None and self.config.is_cacheable:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        hidden = self.decode(decoder_input_ids, memory, attention_mask, cache)
        logits = self.score(hidden)
        loss = None if labels is None else self.loss(logits, labels)
        return Seq2SeqLMOutput(loss=loss, logits=logits, cache=cache, encoder_last_hidden_state=memory)

    def generate(self, inputs: Tensor | None = None, **options: Any) -> Any:
        """Write the target for source ids (B, S): transformers' ``generate``, greedy or with ``num_beams``.

        Without ``attention_mask`` the source positions equal to ``pad_token_id`` are masked, as in `forward`.
        """
        ids = options.get("input_ids") if inputs is None else inputs
        if ids is not None and options.get("attention_mask") is None:
            options["attention_mask"] = (ids != self.config.pad_token_id).long()
        if not self.config.is_cacheable:
            options.setdefault("use_cache", False)
        return super().generate(inputs, **options)

    def encode(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Source ids (B, S) → (B, S, d_model)."""
        if input_ids is None:
            raise InputError("expected input_ids or encoder_outputs; got neither")
        x = self.source_positions_added(input_ids)
        return cast(Tensor, self.encoder(self.embedding_dropout(x), attention_mask))

    def source_positions_added(self, input_ids: Tensor) -> Tensor:
        """The embedded source with its positions and, where there is one, its target space."""
        x = embed(self.source_embedding, input_ids, self.config)
        if self.config.target_spaces:
            x = x + self.target_space_embedding.weight[self.config.target_space_id]
        return cast(Tensor, self.source_positions(x))

    def decode(
        self, ids: Tensor, memory: Tensor, memory_mask: Tensor | None, cache: EncoderDecoderCache | None
    ) -> Tensor:
        """Target ids (B, T), shifted, and the encoder's output → (B, T, d_model)."""
        start = 0 if cache is None else cache.get_seq_length()
        x = self.target_positions(embed(self.target_table, ids, self.config), start)
        return cast(Tensor, self.decoder(self.embedding_dropout(x), memory, None, memory_mask, cache))

    def score(self, hidden: Tensor) -> Tensor:
        """(B, T, d_model) → logits (B, T, target vocabulary)."""
        hidden = self.output_dropout(hidden)
        if self.config.tie_word_embeddings:
            return F.linear(hidden, self.target_table.weight)
        return cast(Tensor, self.output(hidden))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Smoothed cross-entropy less its least value, averaged over the labels that count.

        The target has probability 1 − ε and each other word ε / (V − 1). PyTorch spreads its own ε′ over all V words,
        so ε′ = ε·V / (V − 1) is the same distribution.

        Source: tensor2tensor v1.0.14, ``common_layers.smoothing_cross_entropy``.
        """
        size, smoothing = logits.shape[-1], self.config.label_smoothing
        targets = labels.masked_fill(labels == self.config.pad_token_id, IGNORED).flatten()
        spread = smoothing * size / (size - 1)
        wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(wide, targets, ignore_index=IGNORED, label_smoothing=spread, reduction="sum")
        count = (targets != IGNORED).sum()
        return (loss - count.to(loss.dtype) * smoothing_constant(smoothing, size)) / count.clamp(min=1)

    def shift_right(self, labels: Tensor | None) -> Tensor:
        """What the decoder reads to write ``labels``: the start id, then the labels but the last."""
        if labels is None:
            raise InputError("expected decoder_input_ids or labels; got neither")
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.config.pad_token_id)], 1)

    @property
    def target_table(self) -> nn.Embedding:
        """The target's embedding: the source's own where they are shared."""
        return self.source_embedding if self.config.share_embeddings else self.target_embedding

    def get_encoder(self, modality: str | None = None) -> Any:
        """What generation calls to read the source."""
        return _SourceReader(self)

    def get_input_embeddings(self) -> nn.Module:
        """The source's embedding."""
        return self.source_embedding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights: embeddings N(0, 1/d_model), linear maps as ``config.init`` says."""
        if isinstance(module, (nn.Embedding, Positions)) and hasattr(module, "weight"):
            nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, (ParameterAttention, nn.LayerNorm)):
            module.reset_parameters()
        elif isinstance(module, SeparableLinear) and self.config.init == "xavier_uniform":
            published_init(module)
        elif isinstance(module, nn.Linear) and self.config.init == "xavier_uniform":
            glorot_uniform_(module.weight, module.in_features, module.out_features)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.Linear, SeparableLinear)):
            module.reset_parameters()


class _SourceReader:
    """The encoder as generation sees it: ids in, ``BaseModelOutput`` out."""

    def __init__(self, model: TransformerForTranslation) -> None:
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any) -> BaseModelOutput:
        if attention_mask is None:
            attention_mask = input_ids != self.model.config.pad_token_id
        return BaseModelOutput(last_hidden_state=self.model.encode(input_ids, attention_mask))

    __call__ = forward


def smoothing_constant(smoothing: float, size: int) -> float:
    """The entropy of the smoothed target: the least value that its cross-entropy can take."""
    if not smoothing:
        return 0.0
    other = smoothing / (size - 1)
    return -((1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(other))
