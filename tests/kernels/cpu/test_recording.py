"""What is recorded on a CPU gives, replayed with other values, what the function itself gives."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from blockstride import kernels
from blockstride.kernels.common.cpu.recording import CpuRecorder
from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.recording import recorder as recorder_of

pytestmark = pytest.mark.skipif(INTERPRET, reason="the interpreter is not recorded")


@pytest.fixture
def recorder() -> CpuRecorder:
    made = recorder_of("cpu")
    assert isinstance(made, CpuRecorder)
    return made


class Block:
    """A little model: programs, and operations of torch of every kind between them."""

    def __init__(self, rows: int, wide: int = 96) -> None:
        torch.manual_seed(rows)
        self.x, self.places = torch.randn(rows, 64), torch.zeros(rows, dtype=torch.int64)
        self.up, self.down = (
            kernels.pack_weight(torch.randn(*shape) / 8) for shape in ((2 * wide, 64), (64, wide))
        )
        self.gain = torch.rand(64)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        residual = torch.zeros_like(self.x)
        hidden = self.x * self.places.to(torch.float32)[:, None].cos()
        for _ in range(3):
            hidden, residual = kernels.rms_norm(hidden, self.gain, 1e-6, residual=residual)
            first, second = kernels.linear(hidden, self.up).split(96, dim=1)
            gated = kernels.gate_and_mul(torch.cat([first, second], dim=1))
            hidden = kernels.linear(gated, self.down)
            hidden += hidden.sigmoid()
        scores, ids = hidden.softmax(-1).topk(2)
        return scores, residual.gather(1, ids)[self.places % len(self.places)]

    def change(self) -> None:
        self.x.normal_()
        self.places.random_(0, 100)


def equal(got, expected) -> bool:
    return all(map(torch.equal, got, expected))


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_replay_gives_the_bits_of_the_function(recorder, rows):
    block = Block(rows)
    recording, refused = recorder.record(block.run)
    assert not refused
    for _ in range(3):
        block.change()
        assert equal(recording.replay(), block.run())


def test_recordings_share_memory_and_take_turns(recorder):
    small, large = Block(2), Block(30)
    recordings = [recorder.record(block.run)[0] for block in (small, large)]
    for _ in range(2):
        for block, recording in zip((small, large), recordings, strict=True):
            block.change()
            assert equal(recording.replay(), block.run())
    alone = CpuRecorder()
    alone.record(large.run)
    assert recorder.arena.nbytes == alone.arena.nbytes


def test_a_replay_makes_no_tensor(recorder):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **kwargs or {})

    block = Block(4)
    recording, _ = recorder.record(block.run)
    with Watch():
        recording.replay()
    assert all(func._schema.is_mutable for func in seen)
    assert len(seen) < recording.num_programs + recording.num_operations


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        torch.rand_like,
        lambda x: x.unique(),
        lambda x: x[:1] if bool(x.sum() > 0) else x,
    ],
)
def test_what_depends_on_values_is_refused(recorder, run):
    x = torch.ones(4, 4)
    recording, refused = recorder.record(lambda: run(x))
    assert recording is None
    assert "aten" in refused


def test_what_another_thread_computes_is_not_recorded(recorder):
    block, other = Block(3), Block(3)

    def run():
        thread = threading.Thread(target=other.run)
        thread.start()
        thread.join()
        return block.run()

    recording, _ = recorder.record(run)
    alone, _ = recorder.record(block.run)
    assert recording.num_programs == alone.num_programs


def test_an_id_outside_of_its_pool_is_refused_in_a_replay(recorder):
    x, weight, state = torch.randn(2, 1, 8), torch.randn(8, 4), torch.zeros(3, 8, 3)
    ids = torch.tensor([1, 2], dtype=torch.int32)
    recording, _ = recorder.record(
        lambda: kernels.causal_conv1d_update(x, weight, None, state, ids)
    )
    recording.replay()
    ids[1] = 3
    with pytest.raises(ValueError, match=r"^ids of a recorded step: expected"):
        recording.replay()
    ids[1] = 2
    recording.replay()


def test_one_thread_gives_the_bits_of_several(recorder):
    block, threads = Block(40, wide=96), torch.get_num_threads()
    recording, _ = recorder.record(block.run)
    several = [each.clone() for each in recording.replay()]
    try:
        torch.set_num_threads(1)
        assert equal(recording.replay(), several)
    finally:
        torch.set_num_threads(threads)


def test_a_function_that_fails_leaves_nothing_behind(recorder):
    def fail():
        raise KeyError("no")

    with pytest.raises(KeyError):
        recorder.record(fail)
    block = Block(2)
    block.run()
    recording, _ = recorder.record(block.run)
    assert equal(recording.replay(), block.run())
