"""The translation model's forward pass, loss and gradients against NumPy float64."""

import math

import numpy as np
import pytest
import torch
import translation_reference as ref

from positionwise.errors import InputError, SpecError
from positionwise.transformer.models import smoothing_constant
from reference import array
from shared import SEPARATE, config, model, sentences

KINDS = [
    {}, {"norm_first": True}, {"positions": "learned", "max_positions": 9}, {"positions": "none"},
    SEPARATE, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True},
    {"tie_word_embeddings": False}, {"target_spaces": 3, "target_space_id": 2}, {"key_dim": 5},
    {"embedding_scale": False, "mask_pad_embedding": False, "norm_first": True},
    {"activation": "silu", "is_gated": True},
    {"encoder_layers": 0}, {"decoder_layers": 0, "norm_first": True}, {"pad_token_id": 3}, {"layer_norm_eps": 1e-3},
]  # fmt: skip


def targets(*lengths):
    """What a decoder reads: the start id 0, then words, then zeros."""
    return torch.cat([torch.zeros(len(lengths), 1, dtype=torch.long), sentences(*lengths)], 1)


def close(fields):
    """The sinusoids are float32's; all else is float64's."""
    return {"rtol": 0, "atol": 3e-6 if fields.get("positions", "sinusoidal") == "sinusoidal" else 1e-9}


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_the_logits_are_the_papers(fields):
    built, source, target = model(**fields), sentences(5, 7, 2), targets(6, 1, 4)
    out = built(input_ids=source, decoder_input_ids=target)
    assert out.loss is None
    assert out.logits.shape == (3, 7, built.config.target_size)
    assert out.encoder_last_hidden_state.shape == (3, 7, 16)
    np.testing.assert_allclose(array(out.logits), ref.logits(built, source.numpy(), target.numpy()), **close(fields))


def test_an_attention_mask_is_used_as_it_is_given():
    built, source, target = model(), sentences(5, 7), targets(3, 3)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1]])
    got = built(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    np.testing.assert_allclose(
        array(got), ref.logits(built, source.numpy(), target.numpy(), mask.numpy() == 1), rtol=0, atol=3e-6
    )
    assert not torch.allclose(got, built(input_ids=source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("pad", [0, 5])
def test_without_a_mask_the_ids_of_padding_are_masked(pad):
    built = model(pad_token_id=pad, mask_pad_embedding=False)
    source, target = sentences(6, 6), targets(3, 3)
    source[0, 4:] = pad
    got = built(input_ids=source, decoder_input_ids=target).logits
    masked = built(input_ids=source, attention_mask=source != pad, decoder_input_ids=target).logits
    assert torch.equal(got, masked)
    assert not torch.allclose(got, built(source, torch.ones_like(source), target).logits)


def test_what_was_encoded_before_is_not_encoded_again():
    built, source, target = model(), sentences(5, 3), targets(3, 3)
    first = built(input_ids=source, decoder_input_ids=target)
    again = built(attention_mask=source != 0, decoder_input_ids=target,
                  encoder_outputs=(first.encoder_last_hidden_state,))  # fmt: skip
    assert torch.equal(again.logits, first.logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("fields", [{}, SEPARATE], ids=str)
def test_the_loss_is_the_smoothed_cross_entropy_less_its_least_value(smoothing, pad, fields):
    built = model(label_smoothing=smoothing, pad_token_id=pad, positions="none", **fields)
    source, labels = sentences(5, 7, 3), sentences(6, 4, 2)
    labels[0, 2], labels[1, 5], labels[2, 3:] = -100, -100, pad
    out = built(input_ids=source, labels=labels)
    expected = ref.loss(array(out.logits), labels.numpy(), smoothing, pad)
    assert out.loss.shape == ()
    assert out.loss.item() == pytest.approx(expected, rel=3e-6)
    read = built.shift_right(labels)
    assert torch.equal(built(input_ids=source, decoder_input_ids=read).logits, out.logits)


def test_every_smoothing_that_the_configuration_takes_has_a_loss():
    built, labels = model(label_smoothing=0.95, positions="none"), sentences(6, 4)  # just below (V − 1) / V
    out = built(input_ids=sentences(5, 7), labels=labels)
    assert out.loss.item() == pytest.approx(ref.loss(array(out.logits), labels.numpy(), 0.95, 0), rel=1e-12)
    with pytest.raises(SpecError, match=r"label_smoothing of at most 0\.9565 for 23 words; got 0\.97"):
        config(label_smoothing=0.97)


def test_a_float64_models_loss_has_float64s_accuracy():
    built, labels = model(positions="none"), sentences(6, 4)
    out = built(input_ids=sentences(5, 7), labels=labels)
    expected = ref.loss(array(out.logits), labels.numpy(), 0.1, 0)
    assert out.loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrow_models_loss_is_computed_in_float32(dtype):
    built, labels = model(dtype), sentences(6, 4)
    out = built(input_ids=sentences(5, 7), labels=labels)
    assert out.loss.dtype == torch.float32
    assert out.loss.item() == pytest.approx(ref.loss(array(out.logits), labels.numpy(), 0.1, 0), rel=1e-5)


def test_without_smoothing_the_loss_is_plain_cross_entropy():
    built, labels = model(label_smoothing=0.0), sentences(6, 4)
    out = built(input_ids=sentences(5, 7), labels=labels)
    scores = array(out.logits)
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    told = [log_p[i, j, label] for (i, j), label in np.ndenumerate(labels.numpy()) if label]
    assert out.loss.item() == pytest.approx(-np.mean(told), rel=3e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("label", [0, -100])
def test_a_batch_without_labels_has_a_finite_loss_and_no_gradient(smoothing, label):
    built = model(label_smoothing=smoothing)
    loss = built(input_ids=sentences(3, 3), labels=torch.full((2, 4), label)).loss
    assert loss.isfinite()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)  # nothing was to be told, and no loss is below its least value
    loss.backward()
    assert all(p.grad is None or not p.grad.count_nonzero() for p in built.parameters())


@pytest.mark.parametrize(("smoothing", "size"), [(0.1, 23), (0.2, 5), (0.5, 2), (0.96, 37_000), (0.0, 7)])
def test_the_smoothing_constant_is_the_targets_entropy(smoothing, size):
    target = [1 - smoothing] + [smoothing / (size - 1)] * (size - 1)
    assert smoothing_constant(smoothing, size) == pytest.approx(-sum(p * math.log(p) for p in target if p), rel=1e-9)


def test_the_decoder_reads_the_labels_shifted_right():
    built = model(decoder_start_token_id=7)
    labels = torch.tensor([[5, 6, 1, 0], [8, 9, -100, 4]])
    assert built.shift_right(labels).tolist() == [[7, 5, 6, 1], [7, 8, 9, 0]]
    assert labels.tolist() == [[5, 6, 1, 0], [8, 9, -100, 4]]


def test_decoder_inputs_beside_labels_are_read_as_they_are():
    built, source, labels, read = model(), sentences(4, 4), sentences(5, 5), targets(4, 4)
    out = built(input_ids=source, decoder_input_ids=read, labels=labels)
    assert torch.equal(out.logits, built(input_ids=source, decoder_input_ids=read).logits)
    assert out.loss.item() == pytest.approx(ref.loss(array(out.logits), labels.numpy(), 0.1, 0), rel=3e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"decoder_input_ids": torch.ones(1, 2, dtype=torch.long)}, "input_ids or encoder_outputs; got neither"),
     ({"input_ids": torch.ones(1, 2, dtype=torch.long)}, "decoder_input_ids or labels; got neither"),
     ({}, "got neither")],
)  # fmt: skip
def test_what_is_missing_is_named(given, words):
    with pytest.raises(InputError, match=words):
        model()(**given)


@pytest.mark.parametrize(("source", "target"), [(10, 3), (3, 10)])
def test_too_long_for_learned_positions_is_an_error(source, target):
    built = model(positions="learned", max_positions=9)
    with pytest.raises(InputError, match="at most 9 positions; got 10"):
        built(input_ids=sentences(source), labels=sentences(target))


def test_the_target_space_is_the_row_that_is_asked_for():
    source, target = sentences(4, 4), targets(3, 3)
    built = model(target_spaces=3)
    rows = []
    for built.config.target_space_id in range(3):
        rows.append(built(input_ids=source, decoder_input_ids=target).logits)
    assert not any(torch.allclose(rows[i], rows[i - 1]) for i in range(3))


@pytest.mark.parametrize("fields", [{"positions": "learned", "max_positions": 9}, {"norm_first": True, **SEPARATE}],
                         ids=str)  # fmt: skip
def test_gradients_are_those_of_finite_differences(fields):
    built, source, target = model(activation="silu", **fields), sentences(5, 3), targets(3, 4)
    told = torch.randn(2, 5, built.config.target_size, dtype=torch.float64)

    def value():
        return (built(input_ids=source, decoder_input_ids=target).logits * told).sum()

    value().backward()
    names = ["source_embedding.weight", "encoder.layers.0.self_attention.key.weight",
             "encoder.layers.1.feed_forward.layer1.bias", "decoder.layers.0.cross_attention.query.weight",
             "decoder.layers.1.feed_forward_norm.weight"]  # fmt: skip
    for name in names:
        parameter = built.get_parameter(name)
        places = parameter.grad.flatten().abs().topk(2).indices.tolist()
        for place in places:
            flat, step, values = parameter.data.view(-1), 1e-5, []
            for side in (step, -2 * step):
                flat[place] += side
                values.append(value().item())
            flat[place] += step
            slope = (values[0] - values[1]) / (2 * step)
            assert parameter.grad.flatten()[place].item() == pytest.approx(slope, rel=1e-6), name
