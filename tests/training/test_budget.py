"""The budget by a clock that the test turns."""

import pytest

from positionwise.training.budget import Budget


class Clock:
    """Seconds since some moment long ago."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def at(clock, seconds, *arguments):
    """A budget whose clock has run for so many seconds."""
    budget = Budget(*arguments, clock=clock)
    budget.start()
    clock.now += seconds
    return budget


@pytest.mark.parametrize(("seconds", "done"), [(0, 0), (30, 0.25), (60, 0.5), (120, 1), (500, 1)])
def test_the_clock_alone(clock, seconds, done):
    budget = at(clock, seconds, 2, None)
    assert budget.done(0) == budget.done(10**9) == done
    assert budget.seconds == seconds


@pytest.mark.parametrize(("step", "done"), [(0, 0), (1, 0.1), (5, 0.5), (10, 1), (11, 1)])
def test_steps_alone(clock, step, done):
    assert at(clock, 10**6, None, 10).done(step) == done


@pytest.mark.parametrize(
    ("seconds", "step", "done"), [(60, 1, 0.5), (6, 5, 0.5), (120, 0, 1), (0, 10, 1), (60, 8, 0.8)]
)
def test_whichever_limit_is_further_on_counts(clock, seconds, step, done):
    assert at(clock, seconds, 2, 10).done(step) == done


def test_earlier_sittings_count(clock):
    budget = Budget(2, None, clock=clock)
    assert budget.seconds == 0  # before it starts
    budget.start(earlier=90)
    assert budget.seconds == 90
    assert budget.done(0) == 0.75
    clock.now += 15
    assert budget.done(0) == 0.875
    clock.now += 100
    assert budget.done(0) == 1


def test_the_clock_runs_from_the_start_and_not_from_the_making(clock):
    budget = Budget(1, None, clock=clock)
    clock.now += 1000
    budget.start()
    assert budget.done(0) == 0


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 1e-3), (1, 0.1), (5, 0.5), (10, 1), (55, 0.5), (91, 0.1), (100, 0), (120, 0)]
)
def test_the_rate_rises_over_the_warm_up_and_falls_to_zero(clock, step, rate):
    assert at(clock, 0, None, 100).rate(step, 0.1) == pytest.approx(rate)


@pytest.mark.parametrize(("seconds", "rate"), [(0, 1e-3), (6, 0.5), (12, 1), (66, 0.5), (120, 0)])
def test_the_rate_follows_the_clock_too(clock, seconds, rate):
    assert at(clock, seconds, 2, None).rate(0, 0.1) == pytest.approx(rate)


def test_the_rate_without_a_warm_up_begins_at_its_peak(clock):
    budget = at(clock, 0, None, 100)
    assert [budget.rate(step, 0.0) for step in (0, 50, 100)] == [1, 0.5, 0]


def test_the_rate_never_rises_after_the_warm_up_and_is_never_negative(clock):
    budget = at(clock, 0, None, 100)
    rates = [budget.rate(step, 0.2) for step in range(130)]
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert min(rates) == 0
    assert max(rates) == 1
