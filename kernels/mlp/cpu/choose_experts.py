"""The choice of experts for CPUs. A task is a few tokens."""

import numpy as np
import torch
from torch import Tensor

from blockstride.kernels.common.cpu.lanes import LANES, ZERO, load, store
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    float_bits,
    float_of,
    i64_at,
    inlined,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import float_rows, float_vector
from blockstride.kernels.common.cpu.vector_math import exp, sigmoid

ROWS_PER_TASK = 16
INFINITY = np.float32(np.inf)
# rows of scratch: scores, what experts are chosen by, and what groups are
SCORES, PREFERENCE, GROUPS, ROWS = range(4)


@inlined
def _score(scores, lanes, logits, num_experts, is_sigmoid):
    """Fill in the scores of a token."""
    largest, total = -INFINITY, ZERO
    for e in range(num_experts):
        largest = max(largest, logits[e])
    for i in range(0, num_experts, LANES):
        load(lanes, shifted(logits, i), min(LANES, num_experts - i))
        if is_sigmoid != 0:
            for lane in range(LANES):
                lanes[lane] = sigmoid(lanes[lane])
        else:
            for lane in range(LANES):
                lanes[lane] = exp(lanes[lane] - largest)
        store(shifted(scores, i), lanes, min(LANES, num_experts - i))
    if is_sigmoid == 0:
        for e in range(num_experts):
            total += scores[e]
        for e in range(num_experts):
            scores[e] /= total


@inlined
def _best(values, count):
    """The place of the largest value."""
    best = 0
    for i in range(1, count):
        if values[i] > values[best]:
            best = i
    return best


@inlined
def _keep_groups(preference, groups, num_experts, num_groups, num_chosen):
    """Take away the experts of all groups but those whose two best add up to most."""
    size = num_experts // num_groups
    for group in range(num_groups):
        first, second = -INFINITY, -INFINITY
        for e in range(group * size, (group + 1) * size):
            value = preference[e]
            second = max(second, min(first, value))
            first = max(first, value)
        groups[group] = first + second if size > 1 else first
    for _ in range(num_groups - num_chosen):
        worst = 0
        for group in range(1, num_groups):
            if groups[group] < groups[worst]:
                worst = group
        groups[worst] = INFINITY
        for e in range(worst * size, (worst + 1) * size):
            preference[e] = -INFINITY


@Program
def _choose(address):
    (
        logits, correction, scratch, ids, weights, num_tokens, num_experts, top_k, stride,
        is_sigmoid, num_groups, num_chosen, is_renormalised, scale, floor,
    ) = arguments(address, 15)  # fmt: skip
    lanes = stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        begin = task * ROWS_PER_TASK
        task = claim(address)
        rows = f32_at(scratch + 4 * begin * ROWS * num_experts)
        scores = shifted(rows, SCORES * num_experts)
        preference = shifted(rows, PREFERENCE * num_experts)
        groups = shifted(rows, GROUPS * num_experts)
        for token in range(begin, min(begin + ROWS_PER_TASK, num_tokens)):
            _score(scores, lanes, f32_at(logits + 4 * token * stride), num_experts, is_sigmoid)
            for e in range(num_experts):
                preference[e] = scores[e] + (f32_at(correction)[e] if correction != 0 else ZERO)
            if num_chosen < num_groups:
                _keep_groups(preference, groups, num_experts, num_groups, num_chosen)
            chosen, weight = i64_at(ids + 8 * token * top_k), f32_at(weights + 4 * token * top_k)
            total = float_of(floor)
            for k in range(top_k):
                best = _best(preference, num_experts)
                preference[best] = -INFINITY
                chosen[k], weight[k] = best, scores[best]
                total += scores[best]
            divisor = total if is_renormalised != 0 else np.float32(1)
            for k in range(top_k):
                weight[k] = weight[k] / divisor * float_of(scale)


def choose_experts(
    logits: Tensor,
    top_k: int,
    *,
    is_sigmoid: bool,
    correction: Tensor | None,
    num_groups: int,
    num_chosen_groups: int,
    is_renormalised: bool,
    scale: float,
    floor: float,
) -> tuple[Tensor, Tensor]:
    """See `blockstride.kernels.choose_experts`."""
    (num_tokens, num_experts), rows = logits.shape, float_rows(logits)
    correction, offset = float_vector(correction)
    ids = torch.empty(num_tokens, top_k, dtype=torch.int64)
    weights = torch.empty(num_tokens, top_k)
    tasks = -(-num_tokens // ROWS_PER_TASK)
    scratch = torch.empty(tasks * ROWS_PER_TASK * ROWS * num_experts)
    _choose(
        tasks, 2, rows.data_ptr(), offset, scratch.data_ptr(), ids.data_ptr(), weights.data_ptr(),
        num_tokens, num_experts, top_k, rows.stride()[0], int(is_sigmoid), num_groups,
        num_chosen_groups, int(is_renormalised), float_bits(scale), float_bits(floor),
    )  # fmt: skip
    return ids, weights
