"""How much of a training is done: by the clock, by steps, or by whichever is further on."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Time and steps of a training, over all its sittings.

    Args:
        minutes: of steps, validation and checkpoints together; None for no limit.
        max_steps: None for no limit.
        clock: seconds, for tests.
    """

    def __init__(
        self, minutes: float | None, max_steps: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds_allowed = None if minutes is None else 60 * minutes
        self.max_steps = max_steps
        self.clock = clock
        self.earlier = 0.0
        self.started: float | None = None

    def start(self, earlier: float = 0.0) -> None:
        """Start the clock, with the seconds that earlier sittings took."""
        self.earlier, self.started = earlier, self.clock()

    @property
    def seconds(self) -> float:
        """Seconds spent, earlier sittings included."""
        return self.earlier + (0.0 if self.started is None else self.clock() - self.started)

    def done(self, step: int) -> float:
        """Share of the budget spent after so many steps, at most 1."""
        by_time = 0.0 if self.seconds_allowed is None else self.seconds / self.seconds_allowed
        by_steps = 0.0 if self.max_steps is None else step / self.max_steps
        return min(1.0, max(by_time, by_steps))

    def rate(self, step: int, warmup: float) -> float:
        """Share of the peak learning rate: a straight rise over ``warmup`` of the budget, a straight fall to zero.

        The first step, at nothing done, takes a small rate instead of none.
        """
        done = self.done(step)
        if done < warmup:
            return max(done / warmup, 1e-3)
        return (1 - done) / (1 - warmup)
