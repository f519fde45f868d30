"""Steps of an engine that end in an exception: the next one goes on as if nothing had been."""

import itertools

from blockstride.models import SamplingParams
from blockstride.models.engine import engine as module
from tests.models.generations import make_engine, tokens


def run(engine):
    """Two requests, one of them in the middle of its prompt for some steps, and their tokens."""
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=1, ignore_eos=True)
    requests = [engine.add_request(tokens(259, count), params) for count in (3, 40)]
    interrupts = 0
    for _ in range(100):
        try:
            engine.step()
        except (KeyboardInterrupt, MemoryError):
            interrupts += 1
    assert not engine.has_work
    engine.blocks.check()
    assert engine.blocks.num_free == tuple(p.layout.num_blocks - 1 for p in engine.pools)
    return [request.output_ids for request in requests], interrupts


def interrupted(function, error, when):
    """A function whose calls of some numbers raise when they have done what they do."""
    calls = itertools.count()

    def call(*arguments, **options):
        result = function(*arguments, **options)
        if next(calls) in when:
            raise error
        return result

    return call


def test_tokens_do_not_depend_on_steps_that_failed(reference, monkeypatch):
    plain = make_engine(reference.path, prefill_chunk=16, record_steps=False)
    replaying = make_engine(reference.path, prefill_chunk=16)
    undisturbed, _ = run(plain)
    # all states have taken in the tokens of the step
    part = plain.model.branches[-1].parts[-1]
    for engine, place, name, error in [
        (plain, part, "forward", MemoryError()),
        (plain, part, "forward", KeyboardInterrupt()),
        (replaying, replaying.steps, "forward", MemoryError()),
        # any other would be a row's own trouble
        (replaying, module, "sample", KeyboardInterrupt()),
    ]:
        with monkeypatch.context() as broken:
            failing = interrupted(getattr(place, name), error, range(1, 20, 3))
            broken.setattr(place, name, failing)
            found, interrupts = run(engine)
        assert found == undisturbed
        assert interrupts > 3
