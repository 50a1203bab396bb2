"""Hypothesis profiles, seeds and the header of a test run."""

import os
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import convbwd

# Derandomised: every run of a profile tests the same examples.
for _name, _examples in (("dev", 150), ("ci", 600)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_report_header() -> str:
    """Say which build is tested."""
    facts = ", ".join(f"{key}={value}" for key, value in convbwd.build_info().items())
    return f"convbwd: {facts}, threads={convbwd.get_num_threads()}; hypothesis is derandomised"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator whose seed depends on the test only, and is shown when the test fails."""
    seed = zlib.crc32(request.node.nodeid.rpartition("::")[2].encode())
    print(f"seed: {seed}")
    return np.random.default_rng(seed)
