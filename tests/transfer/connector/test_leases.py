"""Leases: blocks stay as they are while somebody reads them, and a late reader gets no others."""

import asyncio
import signal
from dataclasses import replace
from time import monotonic

import pytest

from blockstride.transfer import BlockIds
from blockstride.transfer.connector import Connector
from blockstride.transfer.connector.leases import LeaseEnd, LeaseTable
from blockstride.transfer.errors import LeaseExpiredError, PeerRefusedError
from tests.transfer.connector import roles
from tests.transfer.connector.bulk import bulk
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import QUICK, scene
from tests.transfer.support import storages

A, B = ("reader", 0), ("reader", 1)
TABLES = [BlockIds([1, 2])]


def table() -> LeaseTable:
    leases = LeaseTable(10.0)
    leases.offer("r", 20, TABLES, 0.0)
    return leases


def test_blocks_go_back_when_the_last_of_several_readers_has_finished():
    leases = table()
    for reader in (A, B):
        leases.claim("r", reader, 2, 1.0)
    leases.finish("r", 1, A, 2.0)
    assert leases.ended() == []
    leases.finish("r", 1, B, 3.0)
    assert leases.ended() == [LeaseEnd("r", "read")]
    assert len(leases) == 0


def test_a_reader_that_finishes_twice_counts_once():
    leases = table()
    leases.claim("r", A, 2, 1.0)
    leases.finish("r", 1, A, 2.0)
    leases.finish("r", 1, A, 2.0)
    assert leases.ended() == []
    with pytest.raises(PeerRefusedError, match="was read by this rank before"):
        leases.claim("r", A, 2, 3.0)


def test_readers_of_equal_ranks_of_two_engines_are_not_taken_for_each_other():
    leases = table()
    leases.claim("r", A, 2, 1.0)
    with pytest.raises(PeerRefusedError, match="read by 'reader'"):
        leases.claim("r", ("other", 0), 1, 1.0)
    with pytest.raises(PeerRefusedError, match="read by 'reader'"):
        leases.finish("r", 1, ("other", 0), 1.0)


def test_each_sign_of_life_makes_a_lease_last_from_then_on():
    leases = table()
    leases.claim("r", A, 1, 8.0)
    assert leases.renew("r", 1, 17.0)
    leases.expire(26.0)
    leases.finish("r", 1, A, 27.0)
    assert leases.ended() == [LeaseEnd("r", "read")]


def test_a_lease_that_ran_out_confirms_nothing_even_before_it_is_swept():
    leases = table()
    leases.claim("r", A, 1, 0.0)
    assert not leases.renew("r", 1, 10.1)
    with pytest.raises(LeaseExpiredError, match="ran out"):
        leases.finish("r", 1, A, 10.1)
    leases.expire(10.1)
    assert leases.ended() == [LeaseEnd("r", "expired")]


def test_a_lease_of_the_same_request_given_again_is_another_one():
    leases = table()
    leases.claim("r", A, 1, 0.0)
    assert leases.withdraw("r")
    assert leases.offer("r", 20, TABLES, 1.0).epoch == 2
    leases.claim("r", A, 1, 1.0)
    assert not leases.renew("r", 1, 1.0)
    with pytest.raises(LeaseExpiredError, match="lease 1 of request 'r' has ended"):
        leases.finish("r", 1, A, 2.0)


def test_a_reader_that_gives_up_is_not_waited_for():
    leases = table()
    leases.claim("r", A, 2, 0.0)
    leases.abandon("r", None, B, 2)
    leases.abandon("r", 7, A, 2)
    assert leases.ended() == []
    leases.finish("r", 1, A, 1.0)
    assert leases.ended() == [LeaseEnd("r", "abandoned")]


def test_a_reader_that_gives_up_before_it_asked_for_anything_is_not_waited_for_either():
    leases = table()
    leases.abandon("r", None, A, 2)
    with pytest.raises(PeerRefusedError, match="read by 'reader'"):
        leases.claim("r", ("other", 0), 1, 1.0)
    leases.claim("r", B, 2, 1.0)
    leases.finish("r", 1, B, 2.0)
    assert leases.ended() == [LeaseEnd("r", "abandoned")]
    leases.offer("alone", 20, TABLES, 3.0)
    leases.abandon("alone", None, A, 1)
    assert leases.ended() == [LeaseEnd("alone", "abandoned")]


def test_nobody_gives_up_what_another_engine_reads():
    leases = table()
    leases.claim("r", A, 1, 0.0)
    leases.abandon("r", None, ("other", 0), 1)
    assert len(leases) == 1


def test_a_lease_lasts_as_long_as_its_blocks_are_being_written():
    leases = table()
    lease = leases.claim("r", A, 1, 0.0)
    lease.writing[A] = stop = asyncio.Event()
    leases.expire(100.0)
    assert leases.ended() == []
    assert not leases.stop_writing(B, "r")
    assert not stop.is_set()
    assert leases.stop_writing(A, "r")
    assert stop.is_set()
    leases.written(lease, A)
    assert leases.ended() == []
    leases.expire(100.0)
    assert leases.ended() == [LeaseEnd("r", "expired")]


def test_a_lease_that_is_withdrawn_ends_as_soon_as_nobody_is_written_to():
    leases = table()
    lease = leases.claim("r", A, 2, 0.0)
    stops = {reader: asyncio.Event() for reader in (A, B)}
    lease.writing.update(stops)
    assert not leases.withdraw("r")
    assert all(stop.is_set() for stop in stops.values())
    leases.written(lease, A)
    assert leases.ended() == []
    leases.written(lease, B)
    assert leases.ended() == [LeaseEnd("r", "withdrawn")]
    # and once only, where its last reader has ended it in between
    lease = leases.offer("s", 16, [], 0.0)
    lease.writing[A] = asyncio.Event()
    leases.withdraw("s")
    leases.abandon("s", None, A, 1)
    leases.written(lease, A)
    assert leases.ended() == [LeaseEnd("s", "abandoned")]


def test_what_is_offered_before_readers_can_come_is_held_for_as_long_as_what_is_offered_later():
    made = bulk(8)
    with Connector(made.local) as connector:
        connector.offer("r", made.num_tokens, made.request().local)
        (lease,) = connector._leases._leases.values()
        # as if making an agent had taken nearly all its time
        lease.ends -= connector.settings.lease_seconds
        begin = monotonic()
        connector.register_kv_caches(roles.tensors(storages(made.local, 0)))
        assert lease.ends >= begin + connector.settings.lease_seconds
        assert connector.withdraw("r")


def test_a_reader_that_comes_too_late_gets_an_error_and_not_the_next_tenants_bytes(crew: Crew):
    play = scene(crew)
    play.reader.call(roles.send_me, signal.SIGSTOP, True)
    play.reader.call(roles.start)
    # all bytes are here, and the reader has not asked yet whether they were right
    play.reader.until_stopped()
    assert play.producer.call(roles.until_ended) == [("r", "expired")]
    play.producer.call(roles.overwrite, 0x5A, "p0")
    play.reader.resume()
    found = play.reader.call(roles.outcome)
    assert found["kind"] in {"expired", "lost"}
    assert "request 'r', producer rank 0" in found["error"]
    assert found["invalid"] == play.blocks


def test_an_offer_that_is_withdrawn_fails_who_reads_it_with_the_epoch(crew: Crew):
    play = scene(crew, producer=replace(QUICK, lease_seconds=60.0))
    play.reader.call(roles.send_me, signal.SIGSTOP, True)
    play.reader.call(roles.start)
    play.reader.until_stopped()
    assert play.producer.call(roles.withdraw, "r")
    play.producer.call(roles.overwrite, 0x5A, "p0")
    play.producer.call(roles.offer, "r")
    play.reader.resume()
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "expired"
    assert "lease 1 of request 'r' has ended" in found["error"]
    assert found["invalid"] == play.blocks


def test_a_reader_that_says_it_is_alive_may_take_longer_than_a_lease(crew: Crew):
    brief = replace(QUICK, lease_seconds=0.6)
    play = scene(crew, producer=brief, reader=brief)
    play.reader.call(roles.dawdle, 1.5)
    assert play.read()["kind"] == ""
    assert play.producer.call(roles.until_ended) == [("r", "read")]


def test_an_offer_that_nobody_reads_ends_by_itself(crew: Crew):
    play = scene(crew, producer=replace(QUICK, lease_seconds=0.3))
    assert play.producer.call(roles.until_ended) == [("r", "expired")]
    found = play.read()
    assert found["kind"] == "refused"
    assert "request 'r' is not held here" in found["error"]


def test_a_request_can_neither_be_offered_nor_read_twice_at_once(crew: Crew):
    play = scene(crew)
    message = play.producer.call(roles.refusal_of, roles.offer, "r")
    assert message == "request_id: expected one that isn't offered already, got 'r'"
    play.reader.call(roles.dawdle, 0.5)
    play.reader.call(roles.start)
    message = play.reader.call(roles.refusal_of, roles.start, "r")
    assert message == "request_id: expected one that isn't being read, got 'r'"
    assert play.reader.call(roles.outcome)["kind"] == ""
    assert play.read()["kind"] == "refused"
