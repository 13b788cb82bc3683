"""KVA304: cached tokens on a prefix that only others sent fire; own prefixes do not."""

from dataclasses import replace

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.sharing import find_shared_cache_hits
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts

FACTS = ServerFacts(roles=(RoleFacts(role="unified", page_size=16),))
NOTICE = (
    "This notice of the house is read aloud to everyone in the hall before the doors open. " * 4
)


def cached(name, tenant, tokens, *, text, sent=100, role=Role.TRIGGER, wave=9, at=0):
    return RequestRecord(
        request_id=name, tenant=tenant, role=role, wave=wave, outcome=Outcome.ANSWERED,
        messages=(Message(role="user", content=text),), output_text="fine", cached_tokens=tokens,
        prompt_tokens_sent=sent, sent_unix_ns=at, ended_unix_ns=at + 10,
    )  # fmt: skip


def find(*records, template=0):
    calibration = cached(
        "c", "b", template, text="unlike all others", role=Role.CALIBRATION, wave=1
    )
    return find_shared_cache_hits(Corpus(records=(calibration, *records), facts=FACTS))


def fill(tenant="a"):
    return cached("fill", tenant, 0, text=NOTICE + "of a", role=Role.FILL, wave=3, at=100)


def test_a_hit_on_a_prefix_that_only_another_tenant_sent_fires():
    found = find(fill(), cached("r", "b", 64, text=NOTICE + "and of b", at=200))
    (evidence,) = found.evidence
    assert evidence.sink_request_id == "r"
    assert evidence.details["own_prefix_tokens"] == 0


def test_a_hit_on_a_prefix_that_the_tenant_sent_itself_is_silent():
    assert find(fill("b"), cached("r", "b", 64, text=NOTICE + "and of b", at=200)).evidence == ()


def test_a_second_turn_that_repeats_the_first_answer_is_silent():
    first = replace(cached("one", "b", 0, text=NOTICE, at=100), output_text="I see. " * 20)
    second = cached("two", "b", 96, text=NOTICE + "I see. " * 20 + "Go on.", at=200)
    assert find(first, second).evidence == ()


def test_one_page_and_the_vendor_s_template_are_silent():
    assert find(cached("r", "b", 16, text="something new", at=200)).evidence == ()
    assert find(cached("r", "b", 48, text="something new", at=200), template=32).evidence == ()
    assert len(find(cached("r", "b", 49, text="something new", at=200), template=32).evidence) == 1


def test_what_the_tenant_sends_later_is_no_excuse():
    later = cached("later", "b", 0, text=NOTICE, at=900)
    assert len(find(fill(), cached("r", "b", 64, text=NOTICE + "b", at=200), later).evidence) == 1


def test_a_server_that_tells_no_cached_tokens_has_no_such_oracle():
    silent = replace(cached("r", "b", 0, text="x"), cached_tokens=None)
    assert not find_shared_cache_hits(Corpus(records=(silent,), facts=FACTS)).available
