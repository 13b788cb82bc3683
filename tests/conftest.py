"""Settings of the whole suite: Hypothesis profiles, and torch made steady where a test uses it."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=2_000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)


@pytest.fixture(autouse=True)
def _steady_torch() -> None:
    """One thread and deterministic algorithms, where an engine test has loaded torch.

    Torch is never imported here: most of the suite must pass without it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "use_deterministic_algorithms"):
        # cuBLAS needs a fixed workspace before it can promise the same bits twice.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
