"""TensorBoard's histograms of the hidden units, read back from a run's event files."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator
from torch import nn
from transformers import TrainerControl, TrainerState

from positionwise import FeedForward, explain
from positionwise.errors import SpecError, Stopped
from positionwise.training import summaries
from positionwise.training.options import TrainOptions
from positionwise.training.summaries import Summaries
from positionwise.training.train import resume, start
from positionwise.training.trainer import TranslationTrainer
from positionwise.transformer import TransformerConfig
from reference import array

LAYERS = ["encoder.layers.0.feed_forward", "decoder.layers.0.feed_forward"]
TAGS = [f"hidden_density_logit/{layer}" for layer in LAYERS]


def histograms(run):
    """Every histogram of a run: {tag: {step: histogram}}."""
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={HISTOGRAMS: 0}).Reload()
    return {
        tag: {event.step: event.histogram_value for event in events.Histograms(tag)}
        for tag in events.Tags()["histograms"]
    }


def by_hand(hidden):
    """The logit of hidden units, (B, S, d_ff), in NumPy's float64."""
    above = (hidden > 0).reshape(-1, hidden.shape[-1]).mean(0, dtype=np.float64)
    return np.log(above + np.exp(-10)) - np.log(1 - above + np.exp(-10))


@pytest.fixture
def summarised(trained, monkeypatch):
    """A run with summaries at steps 1, 10, 20 and 30, and what was told."""
    monkeypatch.setattr(summaries, "EVERY", 10)
    return trained(summaries=True)


def test_a_training_learns_the_same_with_and_without(summarised, finished):
    (run, told), (plain, plain_told) = summarised, finished
    assert told.losses == plain_told.losses
    assert len(told.losses) == 3
    assert told.scores == plain_told.scores
    expected = plain.model().state_dict()
    assert all(torch.equal(weight, expected[key]) for key, weight in run.model().state_dict().items())


def test_one_histogram_for_each_layer_at_the_first_and_every_tenth_step(summarised, finished):
    found = histograms(summarised[0])
    assert sorted(found) == sorted(TAGS)
    assert {step for steps in found.values() for step in steps} == {1, 10, 20, 30}
    assert {histogram.num for steps in found.values() for histogram in steps.values()} == {32}
    assert histograms(finished[0]) == {}


def test_the_values_are_those_of_the_batch(tmp_path, pairs, tiny, monkeypatch):
    """Hooks of the test's own record the hidden units; only at the two steps do the blocks call their layers."""
    seen, paths = {}, {}
    take = TranslationTrainer.training_step

    def recording(self, model, inputs, *rest):
        step = self.state.global_step + 1
        paths[step] = {explain(model.get_submodule(name), torch.zeros(1, 16)).path for name in LAYERS}
        with ExitStack() as hooks:
            for name in LAYERS:
                keep = lambda layer, given, key=(step, name): seen.update({key: array(given[0])})  # noqa: E731
                hooks.enter_context(model.get_submodule(f"{name}.layer2").register_forward_pre_hook(keep))
            return take(self, model, inputs, *rest)

    monkeypatch.setattr(TranslationTrainer, "training_step", recording)
    found = histograms(start(pairs, tmp_path / "new", tiny(max_steps=101, summaries=True, variant="reglu")))
    assert paths == {step: {"layers" if step in (1, 100) else "lean"} for step in range(1, 102)}
    for name, tag in zip(LAYERS, TAGS, strict=True):
        assert sorted(found[tag]) == [1, 100]
        for step, histogram in found[tag].items():
            check(histogram, by_hand(seen[step, name]))


def check(histogram, logit):
    """A histogram holds these values: its exact figures, and as many in each bucket."""
    figures = [histogram.min, histogram.max, histogram.num, histogram.sum, histogram.sum_squares]
    expected = [logit.min(), logit.max(), len(logit), logit.sum(), (logit**2).sum()]
    np.testing.assert_allclose(figures, expected, rtol=1e-12, atol=1e-12)
    edges = np.array([-np.inf, *histogram.bucket_limit])
    counts = [((logit >= low) & (logit < high)).sum() for low, high in zip(edges[:-1], edges[1:], strict=True)]
    np.testing.assert_array_equal(histogram.bucket, counts)


def test_a_resumed_run_keeps_its_summaries(tmp_path, pairs, tiny, listen, monkeypatch):
    monkeypatch.setattr(summaries, "EVERY", 7)
    with pytest.raises(Stopped):
        start(pairs, tmp_path / "new", tiny(summaries=True), listen(stop_at=10))
    run = resume(pairs, tmp_path / "new")
    assert {tag: sorted(steps) for tag, steps in histograms(run).items()} == {tag: [1, 7, 14, 21, 28] for tag in TAGS}


def test_the_hooks_are_there_only_during_a_step():
    model, written = nn.Sequential(FeedForward(4, 8), FeedForward(4, 8)), []
    writer = type("Writer", (), {"add_histogram": lambda self, tag, values, step: written.append((tag, step))})()
    callback, state, control = Summaries(model, writer), TrainerState(global_step=0), TrainerControl()
    callback.on_step_begin(None, state, control)
    assert model[0].layer2._forward_pre_hooks
    model[0](torch.randn(3, 4))
    state.global_step = 1
    callback.on_step_end(None, state, control)
    assert not model[0].layer2._forward_pre_hooks
    callback.on_step_begin(None, state, control)
    assert not model[0].layer2._forward_pre_hooks
    model(torch.randn(3, 4))
    state.global_step = 2
    callback.on_step_end(None, state, control)
    assert written == [("hidden_density_logit/0", 1)]  # the other block was not called


def test_a_model_without_a_block_is_refused_before_any_file(tmp_path, pairs, tiny):
    with pytest.raises(SpecError, match="expected FeedForward blocks to write summaries of; got none in 0 layers"):
        start(pairs, tmp_path / "new", tiny(summaries=True, encoder_layers=0, decoder_layers=0))
    assert not (tmp_path / "new").exists()
    assert tiny(encoder_layers=0, decoder_layers=0).model_config(320).encoder_layers == 0


def test_a_model_of_other_networks_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(TransformerConfig, "feed_forward_spec", lambda config: None)
    with pytest.raises(SpecError, match="to write summaries of; got none in 2 layers"):
        tiny(summaries=True).model_config(320)
    assert not TrainOptions().summaries
