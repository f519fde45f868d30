"""Requests go where their beginning is known, unless what comes before them takes longer."""

import random

from blockstride.models.distributed.known_prefixes import KnownPrefixes, as_tokens
from blockstride.models.distributed.routing import (
    READ_SHARE,
    REQUEST_TOKENS,
    Candidate,
    choose_engine,
)

ROOM = 5000


def test_a_request_goes_where_it_is_known_until_that_engine_is_busier_than_the_hit_is_worth():
    def chosen(queued):
        return choose_engine(1000, [Candidate(0, 0, ROOM), Candidate(queued, 1, ROOM, 900)])

    worth = 900 - REQUEST_TOKENS
    assert [chosen(0), chosen(worth - 1), chosen(worth), chosen(worth + 1)] == [1, 1, 0, 0]


def test_a_token_that_needs_no_reading_is_worth_less_than_one_that_needs_no_computing():
    engines = [Candidate(0, 1, ROOM), Candidate(0, 3, ROOM, 1000)]
    assert choose_engine(1000, engines) == 1
    assert choose_engine(1000, engines, READ_SHARE) == 0


def test_requests_that_nobody_knows_go_to_the_engine_with_the_least_to_do():
    busy = [Candidate(0, 2, ROOM), Candidate(100, 0, ROOM)]
    assert choose_engine(10, [*busy, Candidate(0, 1, ROOM)]) == 2
    assert choose_engine(10, [Candidate(0, 1, ROOM), Candidate(0, 1, ROOM)]) == 0


def test_an_engine_is_known_to_have_what_it_was_sent_and_as_much_as_it_can_hold():
    rng, known, sent = random.Random(3), KnownPrefixes(500), []
    for _ in range(300):
        trunk = rng.choice(sent)[: rng.randint(0, 60)] if sent else []
        sequence = [*trunk, *(rng.randint(0, 9) for _ in range(rng.randint(1, 40)))]
        sent.append(sequence)
        known.add(as_tokens(sequence), "a")
        assert known.match(as_tokens(sequence), "a") == len(sequence)
        assert known.match(as_tokens(sequence), "b") == 0
        assert known.num_tokens <= 500
        assert known.num_tokens == sum(len(node.tokens) for node in known._tree.nodes())
    # what was of use lately is what it has
    for sequence in sent[-4:]:
        assert known.match(as_tokens(sequence), "a") == len(sequence)
    known.add(as_tokens([1] * 501), "a")
    assert known.match(as_tokens([1] * 501), "a") <= 60
