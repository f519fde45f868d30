"""The connector in one process: what it refuses, and that it can be opened and closed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from blockstride.transfer import BlockIds
from blockstride.transfer.connector import Connector, ConnectorSettings, ReadRequest
from tests.transfer.connector import roles
from tests.transfer.connector.bulk import bulk
from tests.transfer.connector.resources import resources_of, wait_settled
from tests.transfer.connector.scenes import scene

INFO = bulk(8).local
MADE = bulk(8).request()


def pools() -> dict[int, torch.Tensor]:
    sizes = INFO.rank_cache(0).pool_bytes
    return {pool: torch.zeros(nbytes, dtype=torch.int8) for pool, nbytes in sizes.items()}


def test_pools_of_other_sizes_are_refused_and_leave_nothing_open():
    wrong = {**pools(), 0: torch.zeros(64, dtype=torch.int8)}
    connector = Connector(INFO)
    with pytest.raises(ValueError, match="pools: expected storages of"):
        connector.register_kv_caches(wrong)
    connector.close()


def test_views_of_one_storage_are_registered_once():
    sizes = INFO.rank_cache(0).pool_bytes
    whole = torch.zeros(sum(sizes.values()), dtype=torch.int8)
    parts = dict(zip(sizes, whole.split(list(sizes.values())), strict=True))
    with Connector(INFO) as connector:
        connector.register_kv_caches(parts)
        assert resources_of(connector)["registered_bytes"] == len(whole)


def test_a_port_that_is_taken_is_an_error_at_once():
    with Connector(INFO) as first:
        port = int(first.register_kv_caches(pools()).rpartition(":")[2])
        second = Connector(INFO, 0, ConnectorSettings(port=port))
        with pytest.raises(OSError, match="in use"):
            second.register_kv_caches(pools())


def test_whoever_listens_to_others_needs_a_key():
    with pytest.raises(ValueError, match=r"key: expected a shared secret to listen on 0\.0\.0\.0"):
        ConnectorSettings(host="0.0.0.0")
    ConnectorSettings(host="0.0.0.0", key=b"a secret")


def test_blocks_that_cannot_be_right_are_refused_where_they_are_named():
    with Connector(INFO) as connector:
        connector.register_kv_caches(pools())
        wrong = [BlockIds([0]), MADE.local[1]]
        request = ReadRequest("r", 16, MADE.local, ("producer",))
        with pytest.raises(ValueError, match="local ids of group 0"):
            connector.start_read(replace(request, local=wrong))
        with pytest.raises(ValueError, match="offered ids of group 0"):
            connector.offer("r", 16, wrong)
        assert resources_of(connector)["reads"] == resources_of(connector)["leases"] == 0


def test_closing_ends_requests_and_frees_their_blocks():
    connector = Connector(INFO)
    connector.register_kv_caches(pools())
    connector.add_peer("producer", ["tcp://127.0.0.1:9"])
    tokens = 8 * 16
    handle = connector.start_read(ReadRequest("r", tokens, MADE.local, ("producer",)))
    connector.close()
    assert handle.done
    assert handle.settled
    assert handle.error is not None
    assert handle.error.kind == "aborted"
    np.testing.assert_array_equal(handle.invalid_blocks[0], MADE.local[0].ids)


def test_a_closed_connector_says_so():
    connector = Connector(INFO)
    with pytest.raises(ValueError, match="got one without registered caches"):
        connector.counters()
    connector.register_kv_caches(pools())
    connector.close()
    connector.close()
    with pytest.raises(ValueError, match=r"connector: expected an open one, .*, got a closed one"):
        connector.ended_leases()


def test_whoever_waits_is_told_of_every_change():
    changes = []
    with Connector(INFO, on_change=lambda: changes.append(None)) as connector:
        connector.register_kv_caches(pools())
        connector.offer("held", 8 * 16, MADE.local)
        assert not changes
        assert connector.withdraw("held")
        assert len(changes) == 1
        handle = connector.start_read(ReadRequest("r", 8 * 16, MADE.local, ("nobody",)))
        assert wait_settled(handle, 10.0)
        # it is done, and it has settled
        assert len(changes) == 3


def test_linking_to_an_engine_that_is_not_there_is_no_error_yet():
    with Connector(INFO, 0, ConnectorSettings(answer_seconds=0.2)) as connector:
        connector.register_kv_caches(pools())
        connector.connect("nobody")
        connector.add_peer("producer", ["tcp://127.0.0.1:9"])
        connector.connect("producer")
        assert resources_of(connector)["links"] == 0


def test_a_reader_that_has_linked_ahead_makes_no_handshake_for_a_request(crew):
    here = scene(crew)
    here.reader.call(roles.link_ahead)
    assert here.reader.call(roles.counters).handshakes == 1
    here.read()
    assert here.reader.call(roles.counters).handshakes == 1
