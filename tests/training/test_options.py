"""What a training may be asked for, and the model that comes of it."""

import json

import pytest

from positionwise import FeedForward
from positionwise.errors import SpecError
from positionwise.training.options import TrainOptions
from positionwise.variants import VARIANTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": None}, "minutes or of steps; got neither"),
        ({"minutes": 0}, "minutes to be above 0; got 0"),
        ({"minutes": -1.5}, "minutes to be above 0; got -1.5"),
        ({"minutes": float("nan")}, "minutes to be above 0; got nan"),
        ({"checkpoint_minutes": 0}, "checkpoint_minutes to be above 0; got 0"),
        ({"learning_rate": -1e-3}, "learning_rate to be above 0; got -0.001"),
        ({"max_steps": 0}, "max_steps to be at least 1; got 0"),
        ({"vocab_size": 258}, "vocab_size to be at least 259; got 258"),
        ({"batch_tokens": 0}, "batch_tokens to be at least 1; got 0"),
        ({"max_length": 1}, "max_length to be at least 2; got 1"),
        ({"validation": 0}, "validation to be at least 1; got 0"),
        ({"held_out": 0}, "held_out to be at least 1; got 0"),
        ({"warmup": 1.0}, "warmup to be at least 0 and below 1; got 1.0"),
        ({"warmup": -0.1}, "warmup to be at least 0"),
    ],
)
def test_what_no_training_can_have_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        TrainOptions(**options)


@pytest.mark.parametrize(
    "options",
    [{"vocab_size": 259}, {"max_steps": 1, "minutes": None}, {"max_length": 2}, {"warmup": 0.0}, {"minutes": 1e-3}],
)
def test_the_least_that_is_allowed(options):
    assert TrainOptions(**options).to_dict().items() >= options.items()


def test_options_go_through_json():
    options = TrainOptions(max_steps=7, variant="swiglu", learning_rate=1e-3)
    assert TrainOptions(**json.loads(json.dumps(options.to_dict()))) == options


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gated_variant_gets_the_width_that_matches(variant):
    options = TrainOptions(variant=variant, d_model=48, d_ff=192)
    spec = options.model_config(400).feed_forward_spec()
    assert spec == FeedForward.variant(variant, 48, 192, match_parameters=True, dropout=0.0).spec
    assert spec.d_ff == (128 if spec.is_gated else 192)
    ungated = 2 * 48 * 192 + 192 + 48
    assert abs(spec.parameters - ungated) <= (2 * 48 + 48 + 2) / 2  # no other width comes closer


def test_the_model_follows_the_options():
    config = TrainOptions(
        d_model=48,
        d_ff=96,
        num_heads=3,
        encoder_layers=1,
        decoder_layers=2,
        dropout=0.2,
        label_smoothing=0.3,
        norm_first=False,
    ).model_config(400)
    expected = {
        "vocab_size": 400, "d_model": 48, "d_ff": 96, "num_heads": 3, "encoder_layers": 1, "decoder_layers": 2,
        "dropout": 0.2, "embedding_dropout": 0.2, "label_smoothing": 0.3, "norm_first": False, "activation": "relu",
        "is_gated": False, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "swigloo"}, "variant to be one of .*geglu.*relu.*swiglu.*got 'swigloo'.*mean 'swiglu'"),
        ({"d_model": 50, "num_heads": 4}, "d_model to be a multiple of num_heads; got 50 and 4"),
        ({"dropout": 1.0}, "dropout to be at least 0 and below 1; got 1.0"),
        ({"d_ff": 0}, "d_ff"),
        ({"num_heads": 0}, "num_heads"),
        ({"encoder_layers": -1}, "encoder_layers"),
    ],
)
def test_what_no_model_can_be_built_from_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        TrainOptions(**options).model_config(400)
