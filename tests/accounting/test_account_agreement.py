"""Two counts that agree, for every configuration, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from positionwise import FeedForward, FFNSpec, account
from positionwise import transformer as transformer_package
from positionwise.accounting import transformers as closed
from positionwise.errors import AccountError
from positionwise.spec import Component
from positionwise.transformer import PRESETS, ParameterAttention, TransformerConfig, TransformerForTranslation
from positionwise.transformer.config import FFN_LAYERS
from shared import SIZES, config

flags = st.booleans()
sizes = st.integers(1, 9)


@st.composite
def configurations(draw):
    heads = draw(st.sampled_from([1, 2, 4]))
    shared, tied = draw(flags), draw(flags)
    vocabulary = draw(st.integers(2, 30))
    kind = draw(st.sampled_from(FFN_LAYERS))
    fields = {}
    if kind.startswith("conv"):
        fields = {"activation": draw(st.sampled_from(["relu", "gelu_tanh", "silu"])), "is_gated": draw(flags),
                  "bias1": draw(flags), "bias2": draw(flags), "bias_gate": draw(flags)}  # fmt: skip
    elif kind == "parameter_attention":
        fields = {"parameter_key_dim": draw(st.none() | sizes), "parameter_value_dim": draw(st.none() | sizes)}
    return TransformerConfig(
        vocab_size=vocabulary,
        target_vocab_size=draw(st.sampled_from([None, vocabulary]) if shared else st.none() | st.integers(2, 30)),
        d_model=4 * draw(sizes), d_ff=draw(sizes), num_heads=heads, key_dim=draw(st.none() | sizes),
        encoder_layers=draw(st.integers(0, 3)), decoder_layers=draw(st.integers(0, 3)),
        positions=draw(st.sampled_from(["sinusoidal", "learned", "none"])), max_positions=draw(sizes),
        share_embeddings=shared, tie_word_embeddings=tied, output_bias=draw(flags) and not tied,
        target_spaces=draw(st.integers(0, 3)), norm_first=draw(flags), value_dim=draw(st.none() | sizes),
        ffn_layer=kind, **fields,
    )  # fmt: skip


@given(configurations())
def test_the_account_is_the_number_of_parameters_of_the_built_model(made):
    with torch.device("meta"):
        built = TransformerForTranslation(made)
    counted = account(made, batch=2, sequence=3)
    assert counted.total == built.num_parameters() == sum(p.numel() for p in built.parameters())
    blocks = [part for part in built.modules() if isinstance(part, FeedForward | ParameterAttention)]
    assert len(blocks) == (0 if made.ffn_layer == "none" else made.encoder_layers + made.decoder_layers)
    assert counted.feed_forward.total == sum(p.numel() for block in blocks for p in block.parameters())
    assert counted.feed_forward.instances == counted.feed_forward.applications == len(blocks)
    assert sum(row.parameters for row in counted.components) == counted.total == account(built).total
    assert all(eval(row.calculation.replace("×", "*").replace(",", "")) == row.parameters for row in counted.components)


@pytest.mark.parametrize("row", range(8))
@pytest.mark.parametrize("error", [-1, 512])
def test_a_closed_form_that_is_off_is_refused_naming_the_row(monkeypatch, row, error):
    right = closed.closed_form

    def wrong(made):
        rows = right(made)
        rows[row] = Component(rows[row].name, rows[row].calculation, rows[row].parameters + error)
        return rows

    monkeypatch.setattr(closed, "closed_form", wrong)
    true = right(config(target_spaces=2))[row]
    with pytest.raises(AccountError) as caught:
        account(config(target_spaces=2))
    told = f"{true.name}: {true.parameters + error:,} and {true.parameters:,}"  # this row and no other
    assert str(caught.value) == f"expected the closed form and the parameters to agree; got {told}"


def test_every_row_that_is_off_is_named(monkeypatch):
    rows = [Component("Layer norms", "7", 7), Component("Hat", "1", 1)]
    monkeypatch.setattr(closed, "closed_form", lambda made: rows)
    with pytest.raises(AccountError) as caught:
        account(config())
    for told in ("Layer norms: 7 and 320", "Hat: 1 and 0", "Cross-attention: 0 and 2,176"):
        assert told in str(caught.value)


def test_a_parameter_that_the_closed_form_does_not_know_is_refused_by_name(monkeypatch):
    class Larger(TransformerForTranslation):
        def __init__(self, made):
            super().__init__(made)
            self.gate = nn.Parameter(torch.zeros(3, 5))

    monkeypatch.setattr(transformer_package, "TransformerForTranslation", Larger)
    with pytest.raises(AccountError, match=r"got gate: 0 and 15$"):
        account(config())


@pytest.mark.parametrize("layer", [nn.Linear(8, 13), nn.Linear(8, 12, bias=False)], ids=str)
def test_a_block_that_is_not_what_its_spec_says_is_refused(layer):
    block = FeedForward(8, 12)
    block.layer1 = layer
    held = sum(p.numel() for p in block.parameters())
    with pytest.raises(AccountError, match=f"to agree; got ffn: 212 and {held}$"):
        account(nn.ModuleDict({"ffn": block, "other": nn.Linear(3, 3)}))


def test_an_unknown_preset_is_an_error_that_lists_the_names_or_the_nearest():
    with pytest.raises(AccountError, match="'transformer-bass' .did you mean 'transformer-base'"):
        account("transformer-bass")
    with pytest.raises(AccountError, match="nothing is downloaded.; got 'Llama'") as caught:
        account("Llama")
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize("target", [3, None, 2.5, {"d_model": 8}, [FFNSpec(8, 12)], FeedForward, torch.zeros(3)],
                         ids=lambda target: type(target).__name__)  # fmt: skip
def test_what_cannot_be_counted_is_refused_by_its_type(target):
    with pytest.raises(AccountError, match=f"got {type(target).__name__}$"):
        account(target)


@pytest.mark.parametrize("target", [FFNSpec(8, 12), FeedForward(8, 12), config()], ids=lambda t: type(t).__name__)
def test_a_vocabulary_is_of_a_preset_only(target):
    with pytest.raises(AccountError, match=f"vocab_size with a preset only; got it with {type(target).__name__}"):
        account(target, vocab_size=100)


@pytest.mark.parametrize("size", [1, 0, -5, 2.5, "many"])
def test_a_vocabulary_that_no_model_can_have_is_refused(size):
    with pytest.raises(AccountError, match="vocab_size"):
        account("transformer-base", vocab_size=size)


def test_a_configuration_of_ones_own_class_is_counted():
    class Mine(TransformerConfig):
        model_type = "mine"

    assert account(Mine(**SIZES)).total == account(TransformerConfig(**SIZES)).total
