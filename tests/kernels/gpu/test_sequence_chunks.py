from blockstride.kernels.common.gpu.sequence_chunks import choose_chunk


def test_sequences_are_cut_only_where_whole_ones_leave_processors_idle():
    assert choose_chunk(num_tokens=8192, num_seqs=1, programs=256, processors=132) == 0
    assert choose_chunk(num_tokens=64, num_seqs=1, programs=32, processors=132) == 0
    assert choose_chunk(num_tokens=8192, num_seqs=1, programs=32, processors=132) == 512
    assert choose_chunk(num_tokens=16384, num_seqs=2, programs=64, processors=132) == 1024
