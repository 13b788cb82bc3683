import subprocess
import sys

import pytest

from engine.faults import CLOSED_BY, FAULTS, FaultPlan, Need, Site, fault_plan, fault_spec
from kvaudit.config import FIXES
from kvaudit.errors import UnknownNameError
from kvaudit.rules import RULES


@pytest.mark.parametrize("spec", FAULTS.values(), ids=list(FAULTS))
def test_every_fault_says_what_it_is(spec):
    assert spec.sites
    assert spec.reports
    assert spec.client_sees
    assert spec.invariant
    assert spec.trigger
    assert set(spec.caught_by) <= set(RULES)
    assert spec.caught_by or Need.ROOM_REUSE in spec.needs, "no client can reach it"
    assert set(spec.fixed_by) <= set(FIXES)


def test_every_site_belongs_to_a_fault():
    assert {site for spec in FAULTS.values() for site in spec.sites} == set(Site)


def test_ids_are_unique():
    ids = [one for spec in FAULTS.values() for one in (spec.id, *spec.also)]
    assert len(ids) == len(set(ids))


def test_a_fix_that_closes_a_site_is_named_by_the_fault():
    for spec in FAULTS.values():
        for site in spec.sites & set(CLOSED_BY):
            assert CLOSED_BY[site] in spec.fixed_by


def test_a_healthy_plan_never_strikes():
    assert not any(FaultPlan().strikes(site) for site in Site)


def test_a_fault_strikes_at_its_own_sites_alone():
    plan = fault_plan("one-sided-truncate")
    assert {site for site in Site if plan.strikes(site)} == {Site.PREFILL_TRUNCATION}


def test_a_fix_closes_its_site():
    plan = fault_plan("reject-not-propagated", ["retire"])
    assert not plan.strikes(Site.ABORT_READING)
    assert plan.strikes(Site.PREFILL_DOOR)


def test_a_plan_may_strike_at_every_third_occasion_from_the_second_on():
    plan = FaultPlan(fault="one-sided-truncate", every=3, first=1)
    struck = [at for at in range(9) if plan.strikes(Site.PREFILL_TRUNCATION, at)]
    assert struck == [1, 4, 7]


def test_a_fault_is_found_by_id_and_a_wrong_name_gets_the_nearest():
    assert fault_spec("f01").name == "reject-not-propagated"
    with pytest.raises(UnknownNameError) as caught:
        fault_plan("reject-not-propagate")
    assert caught.value.nearest == "reject-not-propagated"
    with pytest.raises(UnknownNameError) as caught:
        fault_plan(None, ["chekcsum"])
    assert caught.value.nearest == "checksum"


def test_none_is_a_healthy_plan():
    assert fault_plan("none") == fault_plan(None) == FaultPlan()


def test_the_catalogue_and_the_configuration_need_no_torch():
    code = (
        "import sys; import engine.config, engine.faults, engine.request, engine.pool,"
        " engine.table, engine.prefix, engine.scheduler; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
