"""Another process that computes with a build of convbwd of its own, one call at a time, as it is told over a pipe.

It runs as a script, for the package that it finds may be an older one; so it imports nothing else of this package.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any, BinaryIO

PASSED_ON = (ArithmeticError, MemoryError, TypeError, ValueError)


def best_of(call: Callable[[], Any], calls: int) -> float:
    """Return the least seconds of some calls in a row; a result is freed in its call's time."""
    best = float("inf")
    for _ in range(calls):
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer (kind, ...) with a value, or with the exception that it raised, until the pipe is closed."""
    convbwd: Any = import_module("convbwd")
    pickle.dump(os.path.dirname(convbwd.__file__), answers)
    arrays: Any = ()
    keywords: dict[str, Any] = {}

    def call(mask: Any) -> Any:
        return convbwd.convolution_backward(*arrays, **keywords, output_mask=mask)

    while True:
        answers.flush()
        try:
            kind, *rest = pickle.load(requests)
        except EOFError:
            return
        answer: Any = None
        try:
            if kind == "prepare":
                arrays, keywords = rest
            elif kind == "call":
                answer = call(*rest)
            else:
                mask, calls = rest
                answer = best_of(partial(call, mask), calls)
        except PASSED_ON as error:
            answer = error
        pickle.dump(answer, answers)


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get among the answers
    serve(sys.stdin.buffer, channel)
