"""Timing in turns, and what is made of the times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from convbwd._bench.problem import Array, Mask

PASSES: dict[str, Mask] = {
    "dx+dw+db": (True, True, True),
    "dx": (True, False, False),
    "dw": (False, True, False),
    "db": (False, False, True),
}
TURN_SECONDS = 0.002
MOST_CALLS = 500
LEAST_TURNS = 4
PAUSE = 0.01


def interleave(turns: Sequence[Callable[[int], float]], seconds: float, pause: float = 0) -> Array:
    """
    Let functions take turns, and reverse the order from round to round.

    Parameters
    ----------
    turns : sequence of callable
        Given a number of calls, each makes them in a row and returns the least seconds of one. In a row, so that none
        pays for what another left in the caches.
    seconds : float
        For all of them together, less what their first call takes.
    pause : float, optional
        Seconds before each turn, for the threads of one to fall asleep before the other begins.

    Returns
    -------
    ndarray, shape (len(turns), rounds)
        Best seconds of each turn.
    """
    calls = []
    for turn in turns:
        turn(1)
        calls.append(min(max(4, math.ceil(TURN_SECONDS / max(turn(1), 1e-9))), MOST_CALLS))
    rounds: list[list[float]] = []
    deadline = time.perf_counter() + seconds
    while len(rounds) < LEAST_TURNS or len(rounds) % 2 or time.perf_counter() < deadline:
        taken = [0.0] * len(turns)
        for i in range(len(turns)) if len(rounds) % 2 == 0 else reversed(range(len(turns))):
            time.sleep(pause)
            taken[i] = turns[i](calls[i])
        rounds.append(taken)
    return np.array(rounds).T


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(float(np.mean(np.log(list(values)))))
