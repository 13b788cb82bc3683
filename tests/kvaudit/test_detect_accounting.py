"""KVA301 and KVA302: what must fire, and the look-alikes that must not."""

import pytest

from kvaudit.detect.accounting import (
    admissible_tokens,
    find_over_capacity,
    find_prompt_tokens_mismatch,
)
from kvaudit.detect.corpus import Corpus
from kvaudit.records import Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts

FACTS = ServerFacts(
    context_tokens=2048,
    roles=(
        RoleFacts(role="prefill", pool_tokens=1328, max_input_tokens=1321),
        RoleFacts(role="decode", pool_tokens=4096, max_input_tokens=2041),
    ),
)


def answered(sent, reported, *, role=Role.TRIGGER, outcome=Outcome.ANSWERED):
    return RequestRecord(
        request_id=f"{role}-{sent}", tenant="a", role=role, prompt_tokens_sent=sent,
        prompt_tokens=reported, outcome=outcome, output_text="text",
    )  # fmt: skip


def fired(find, *records, facts=FACTS):
    return bool(find(Corpus(records=records, facts=facts)).evidence)


@pytest.mark.parametrize(("sent", "reported"), [(1400, 1), (200, 5), (1400, 699), (300, 601)])
def test_a_reported_length_far_from_the_sent_one_fires(sent, reported):
    assert fired(find_prompt_tokens_mismatch, answered(sent, reported))


@pytest.mark.parametrize(
    ("sent", "reported"),
    [(1400, 1400), (1400, 701), (300, 599), (20, 45), (199, 1), (1400, None)],
    ids=["equal", "half", "double", "template outweighs a short prompt", "short", "not told"],
)
def test_a_length_within_bounds_or_a_short_prompt_is_silent(sent, reported):
    assert not fired(find_prompt_tokens_mismatch, answered(sent, reported))


def test_without_usage_the_oracle_is_not_available_rather_than_clean():
    found = find_prompt_tokens_mismatch(Corpus(records=(answered(1400, None),)))
    assert not found.available
    assert found.reason


def test_solo_controls_are_the_null():
    records = (answered(200, 1, role=Role.CALIBRATION), answered(200, 200))
    found = find_prompt_tokens_mismatch(Corpus(records=records))
    assert (found.null_alarms, found.null_trials) == (1, 1)


def test_a_prompt_over_a_roles_limit_answered_with_success_fires():
    assert fired(find_over_capacity, answered(1322, 1322))


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.ERROR, Outcome.TIMEOUT])
def test_a_refused_or_failed_long_prompt_is_silent(outcome):
    assert not fired(find_over_capacity, answered(1400, None, outcome=outcome))


def test_the_longest_admissible_prompt_is_silent():
    assert not fired(find_over_capacity, answered(1321, 1321))


def test_one_role_with_a_pool_above_the_prompt_is_silent():
    facts = ServerFacts(
        context_tokens=4096, roles=(RoleFacts(role="unified", pool_tokens=100_000),)
    )
    assert not fired(find_over_capacity, answered(1400, 1400), facts=facts)


def test_a_server_that_states_no_limit_makes_the_oracle_unavailable():
    found = find_over_capacity(Corpus(records=(answered(1400, 1400),)))
    assert not found.available
    assert found.reason


def test_the_tightest_role_decides():
    assert admissible_tokens(FACTS) == 1321
    assert admissible_tokens(ServerFacts(context_tokens=2048)) is None
