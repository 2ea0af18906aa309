"""Cases 21–23 of shared/cases, and one network for each layer: faults that users met in translation Transformers."""

import pytest
import torch

from positionwise.errors import SpecError
from positionwise.transformer import DecoderLayer, EncoderLayer, TransformerConfig, TransformerForTranslation
from shared import SEPARATE, SIZES, config, model, sentences

KINDS = [{}, {"norm_first": True}, {"positions": "learned", "max_positions": 20, **SEPARATE}, {"positions": "none"}]
every_kind = pytest.mark.parametrize("fields", KINDS, ids=str)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def targets(*lengths, width=None):
    """What a decoder reads: the start id 0, then words, then zeros."""
    return torch.cat([torch.zeros(len(lengths), 1, dtype=torch.long), sentences(*lengths, width=width)], 1)


@pytest.mark.parametrize("target", [22, 24, 5])
def test_case_21_shared_embeddings_with_two_vocabularies_are_refused_before_training(target):
    with pytest.raises(SpecError, match=f"one vocabulary size .*got 23 and {target} .*share_embeddings=False"):
        TransformerConfig(**SIZES, target_vocab_size=target)
    separate = TransformerConfig(**SIZES, target_vocab_size=target, share_embeddings=False)
    out = TransformerForTranslation(separate)(input_ids=sentences(3), decoder_input_ids=torch.tensor([[0, 4, 2]]))
    assert out.logits.shape == (1, 3, target)


def test_case_21_a_vocabulary_changed_afterwards_is_refused_too(tmp_path):
    config().save_pretrained(tmp_path)
    with pytest.raises(SpecError, match="one vocabulary size"):
        TransformerForTranslation(TransformerConfig.from_pretrained(tmp_path, target_vocab_size=7))


@every_kind
def test_case_22_padding_a_batch_changes_no_logits_of_real_positions(fields):
    built = model(**fields)
    source, target = sentences(5), targets(4)
    alone = built(input_ids=source, decoder_input_ids=target)
    for more in (1, 6):
        ids = torch.cat([source, torch.zeros(1, more, dtype=torch.long)], 1)
        read = torch.cat([target, torch.zeros(1, more, dtype=torch.long)], 1)
        batch = torch.cat([ids, sentences(5 + more)]), torch.cat([read, targets(4 + more)])
        padded = built(input_ids=batch[0], decoder_input_ids=batch[1])
        torch.testing.assert_close(padded.logits[:1, :5], alone.logits, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            padded.encoder_last_hidden_state[:1, :5], alone.encoder_last_hidden_state, rtol=0, atol=1e-12
        )


@every_kind
def test_case_22_what_stands_at_masked_positions_does_not_matter(fields):
    built = model(**fields)
    source, mask, target = sentences(7, 7), torch.tensor([[1] * 4 + [0] * 3, [1] * 7]), targets(4, 4)
    before = built(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    source[0, 4:] = torch.tensor([21, 1, 3]) if not fields.get("target_vocab_size") else torch.tensor([18, 1, 3])
    assert torch.equal(built(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits, before)


@every_kind
def test_case_22_the_loss_does_not_depend_on_padding(fields):
    built = model(**fields)
    source, labels = sentences(5, 3), sentences(4, 6)
    ids = torch.cat([source, torch.zeros(2, 4, dtype=torch.long)], 1)
    more = torch.cat([labels, torch.zeros(2, 5, dtype=torch.long)], 1)
    loss = built(input_ids=source, labels=labels).loss
    torch.testing.assert_close(built(input_ids=ids, labels=more).loss, loss, rtol=1e-6, atol=0)


def test_case_22_cross_attention_masks_the_source_not_the_target():
    layer = DecoderLayer(config()).double().eval()
    x, memory = draw(1, 3, 16), draw(1, 6, 16)
    source_mask = torch.tensor([[True, True, False, True, True, False]])
    before = layer(x, memory, None, source_mask)
    changed = memory.clone()
    changed[:, [2, 5]] += 3
    assert torch.equal(layer(x, changed, None, source_mask), before)
    for position in (0, 1, 3, 4):
        changed = memory.clone()
        changed[:, position] += 3
        assert not torch.allclose(layer(x, changed, None, source_mask), before)


def test_case_22_the_targets_own_padding_is_seen_only_by_itself_and_later():
    built = model()
    source, target = sentences(4), targets(5)
    before = built(input_ids=source, decoder_input_ids=target).logits
    target[0, 3] = 0
    after = built(input_ids=source, decoder_input_ids=target).logits
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.isclose(after[:, 3:], before[:, 3:]).all(-1).any()


@every_kind
@pytest.mark.parametrize("training", [False, True])
def test_case_23_a_later_word_changes_no_earlier_logits(fields, training):
    built = model(**fields, dropout=0.3, attention_dropout=0.3, hidden_dropout=0.3, embedding_dropout=0.3,
                  output_dropout=0.3).train(training)  # fmt: skip
    source, target = sentences(5, 3), targets(6, 6)
    torch.manual_seed(1)
    before = built(input_ids=source, decoder_input_ids=target).logits
    for position in range(1, 7):
        changed = target.clone()
        changed[:, position] = 2 + (changed[:, position] + 1) % 17
        torch.manual_seed(1)
        after = built(input_ids=source, decoder_input_ids=changed).logits
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.equal(after[:, position], before[:, position])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rank", [None, 2, 3])
def test_case_23_no_gradient_flows_from_an_earlier_output_to_a_later_input(norm_first, rank):
    layer = DecoderLayer(config(norm_first=norm_first, dropout=0.2, attention_dropout=0.2)).double().train()
    mask = {None: None, 2: torch.ones(2, 5), 3: torch.ones(2, 5, 5)}[rank]
    x, memory = draw(2, 5, 16).requires_grad_(), draw(2, 4, 16)
    y = layer(x, memory, None if mask is None else mask.bool())
    for position in range(5):
        (grad,) = torch.autograd.grad(y[:, position].square().sum(), x, retain_graph=True)
        assert not grad[:, position + 1 :].any()
        assert grad[:, position].any()


def test_case_23_the_encoder_is_not_causal():
    layer = EncoderLayer(config()).double()
    x = draw(1, 4, 16).requires_grad_()
    (grad,) = torch.autograd.grad(layer(x)[:, 0].square().sum(), x)
    assert grad.flatten(2).any(-1).all()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_six_layers_have_six_networks_that_learn_apart(stack):
    built = model(**{f"{stack}_layers": 6})
    networks = [layer.feed_forward for layer in getattr(built, stack).layers]
    storages = {p.untyped_storage().data_ptr() for network in networks for p in network.parameters()}
    assert len(storages) == 24
    built(input_ids=sentences(4), labels=sentences(5)).loss.backward()
    grads = [network.layer1.weight.grad for network in networks]
    assert all(grad.any() for grad in grads)
    assert not any(torch.allclose(grads[i], grads[i - 1]) for i in range(6))
