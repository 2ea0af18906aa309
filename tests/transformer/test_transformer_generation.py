"""Generation: cached and uncached, greedy and by beams, held against the model's own forward pass."""

import pytest
import torch

from positionwise.errors import InputError
from shared import SEPARATE, model, sentences

KINDS = [
    {}, {"norm_first": True}, {"positions": "learned", "max_positions": 12}, {"positions": "none", "norm_first": True},
    SEPARATE, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True, "norm_first": True},
    {"target_spaces": 2, "key_dim": 5}, {"pad_token_id": 3, "eos_token_id": 4, "decoder_start_token_id": 5},
    {"ffn_layer": "none", "value_dim": 6}, {"ffn_layer": "parameter_attention"},
]  # fmt: skip
every_kind = pytest.mark.parametrize("fields", KINDS, ids=str)
LENGTH = 10
ONCE = {"max_new_tokens": LENGTH, "no_repeat_ngram_size": 1}  # no word twice: a random model repeats itself
GREEDY = {**ONCE, "do_sample": False, "num_beams": 1}
BEAMS = {**ONCE, "num_beams": 4}


def generate(built, source, **options):
    return built.generate(source, attention_mask=source != built.config.pad_token_id, **options)


def endless(built):
    """The model without an id that ends a sentence."""
    built.config.eos_token_id = built.generation_config.eos_token_id = None
    return built


def source_of(built):
    """A batch of sentences of three lengths, padded with the configuration's own id."""
    ids, pad = sentences(6, 3, 5), built.config.pad_token_id
    ids[ids == pad] = 2
    for row, length in zip(ids, (6, 3, 5), strict=True):
        row[length:] = pad
    return ids


def lengths(built):
    """How many positions the decoder's first layer is given, call by call."""
    seen = []
    built.decoder.layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape[1]))
    return seen


def greedy(built, source, length):
    """The best next word that is not written yet, time after time, each time from the whole prefix."""
    eos, pad = built.config.eos_token_id, built.config.pad_token_id
    ids = torch.full((len(source), 1), built.config.decoder_start_token_id)
    done = torch.zeros(len(source), dtype=torch.bool)
    while ids.shape[1] <= length and not done.all():
        scores = built(input_ids=source, decoder_input_ids=ids).logits[:, -1]
        best = scores.scatter(-1, ids, -torch.inf).argmax(-1)
        best[done] = pad
        done |= best == eos
        ids = torch.cat([ids, best[:, None]], 1)
    return ids


@every_kind
def test_greedy_generation_takes_the_best_word_each_time(fields):
    built = endless(model(**fields))
    source = source_of(built)
    written = generate(built, source, **GREEDY)
    assert written.shape == (3, 1 + LENGTH)
    assert torch.equal(written, greedy(built, source, LENGTH))


@every_kind
@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_the_cache_changes_nothing_but_the_work(fields, how):
    built = model(**fields)
    source, seen = source_of(built), lengths(built)
    cached = generate(built, source, use_cache=True, **how)
    assert set(seen) == {1}
    seen.clear()
    assert torch.equal(generate(built, source, use_cache=False, **how), cached)
    assert seen == list(range(1, len(seen) + 1))


@every_kind
@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_a_sentence_alone_is_translated_as_in_a_batch(fields, how):
    built = model(**fields)
    source = source_of(built)
    together = generate(built, source, **how)
    for row, length, written in zip(source, (6, 3, 5), together, strict=True):
        alone = generate(built, row[None, :length], **how)[0]
        assert written[: len(alone)].tolist() == alone.tolist()
        assert set(written[len(alone) :].tolist()) <= {built.config.pad_token_id, built.config.eos_token_id}


@every_kind
def test_beams_as_many_as_words_find_the_likeliest_pair_of_words(fields):
    built = endless(model(**fields))
    source, size = source_of(built), built.config.target_size
    written = built.generate(source, attention_mask=source != built.config.pad_token_id, num_beams=size,
                             max_new_tokens=2)  # fmt: skip
    pairs = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    read = torch.cat([torch.full((len(pairs), 1), built.config.decoder_start_token_id), pairs], 1)
    for row, found in zip(source, written, strict=True):
        log_p = built(input_ids=row.expand(len(read), -1), decoder_input_ids=read[:, :-1]).logits.log_softmax(-1)
        assert found[1:].tolist() == pairs[log_p.gather(-1, read[:, 1:, None]).sum((1, 2)).argmax()].tolist()


def test_the_cached_steps_have_the_logits_of_one_pass():
    for fields in KINDS:
        built = model(**fields)
        source, target = source_of(built), torch.cat([torch.zeros(3, 1, dtype=torch.long), sentences(6, 6, 6)], 1)
        whole = built(input_ids=source, decoder_input_ids=target).logits
        cache, parts = None, []
        for start, end in ((0, 1), (1, 2), (2, 5), (5, 7)):
            out = built(input_ids=source, decoder_input_ids=target[:, start:end], cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
            assert cache.get_seq_length() == end
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=3e-6)


@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_generation_stops_at_the_end_of_the_sentence(how):
    built = model(**SEPARATE, tie_word_embeddings=False, output_bias=True)
    source = source_of(built)
    with torch.no_grad():
        built.output.bias[1] = 1e4  # nothing is likelier than the end
    assert generate(built, source, **how).tolist() == [[0, 1]] * 3
    with torch.no_grad():
        built.output.bias[1] = -1e4
    written = generate(built, source, **how)
    assert written.shape == (3, 1 + LENGTH)
    assert not (written == 1).any()


def test_a_sentence_that_has_ended_is_padded_while_others_go_on():
    built = model()
    source = source_of(built)
    seen = greedy(built, source, LENGTH)
    word = next(int(w) for w in seen[0, 1:] if (seen == w).any(1).sum() < 3)  # ends some sentences and not others
    built.config.eos_token_id = built.generation_config.eos_token_id = word
    written = generate(built, source, **GREEDY)
    assert torch.equal(written, greedy(built, source, LENGTH))
    ended = [row.tolist() for row in written if word in row]
    assert ended
    assert all(set(row[row.index(word) + 1 :]) <= {0} for row in ended)


@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_networks_that_read_earlier_positions_are_not_given_new_ones_alone(how):
    built = endless(model(ffn_layer="conv_hidden_relu_with_sepconv"))
    source, seen = source_of(built), lengths(built)
    written = built.generate(source, **how)
    assert max(seen) == LENGTH
    assert torch.equal(written, generate(built, source, use_cache=False, **how))
    if how is GREEDY:
        assert torch.equal(written, greedy(built, source, LENGTH))
    out = built(input_ids=source, decoder_input_ids=written, use_cache=True)
    assert out.cache is None
    with pytest.raises(InputError, match="no cache with ffn_layer='conv_hidden_relu_with_sepconv'"):
        built(input_ids=source, decoder_input_ids=written, cache=model()(
            input_ids=source, decoder_input_ids=written, use_cache=True).cache)  # fmt: skip


def test_a_mask_given_to_generate_is_used():
    built = endless(model())
    source = sentences(6, 6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    written = built.generate(source, attention_mask=mask, **GREEDY)
    assert torch.equal(written[:1], generate(built, source[:1, :4], **GREEDY))


@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_without_a_mask_generation_masks_the_ids_of_padding(how):
    built = endless(model())
    source = source_of(built)
    assert torch.equal(built.generate(source, **how), generate(built, source, **how))


def test_beyond_the_last_learned_position_is_an_error():
    built = endless(model(positions="learned", max_positions=6))
    with pytest.raises(InputError, match="at most 6 positions; got 7"):
        built.generate(sentences(4), **GREEDY)


def test_the_configurations_ids_are_those_of_generation():
    made = model(pad_token_id=3, eos_token_id=4, decoder_start_token_id=5).generation_config
    assert (made.pad_token_id, made.eos_token_id, made.decoder_start_token_id) == (3, 4, 5)


@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_generation_leaves_the_model_as_it_was(how):
    built = model(dropout=0.3)
    source, before = source_of(built), {name: p.clone() for name, p in built.named_parameters()}
    assert torch.equal(generate(built, source, **how), generate(built, source, **how))
    assert not built.training
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in built.named_parameters())
