"""The stream engine: blocks, memory, threads, hooks, random scores, and what changes before backward."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from helpers.cases import gradients, inputs, rand, score_case
from torch.testing import assert_close

import regard
from regard import masks, scores
from regard.engines.stream import Stream


def test_results_are_bitwise_equal_from_run_to_run():
    query, key, value = (rand(1, 1, 1031, 16, seed=s, dtype=torch.float32).requires_grad_() for s in (1, 2, 3))
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        mean = regard.attend(query, key, value, dropout=0.1, engine=Stream(128))
        runs.append([mean, *torch.autograd.grad(mean.square().sum(), (query, key, value))])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    tensors = [x.detach() for x in inputs()]
    regard.attend(*tensors, engine="stream")
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError):
        regard.attend(*tensors, engine=Stream(1), mask=lambda q, k: (k <= q) if k.max() < 2 else 1 // 0)
    assert torch.get_num_threads() == before
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(torch.ones(9).sum().item() and torch.get_num_threads()))
    thread.start()
    thread.join()
    assert numbers == [before]


def test_scores_and_masks_are_called_on_blocks_of_the_requested_size():
    score_blocks, mask_blocks = set(), set()

    def score(query, key):
        score_blocks.add((query.shape[-2], key.shape[-2]))
        return query @ key.mT

    def mask(query_index, key_index):
        mask_blocks.add((query_index.numel(), key_index.numel()))
        return key_index <= query_index

    query = rand(12, 4)
    regard.attend(query, query, query, score=score, mask=mask, engine=Stream((5, 4)))
    assert score_blocks >= {(5, 4), (2, 4)}
    assert max(score_blocks) <= (5, 4)
    mask_blocks.clear()
    regard.attend(query, query, query, mask=mask, engine=Stream((5, 4)))  # the fused loops
    assert mask_blocks >= {(5, 4), (2, 4)}
    assert max(mask_blocks) <= (5, 4)


@pytest.mark.slow
def test_memory_grows_with_the_lengths_and_not_with_their_product():
    """In a process of its own: 5,000 × 5,000 float32 weights would be 95 MiB."""
    program = """
import pathlib, torch, regard
def resident(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
def run(kind, n):
    x = torch.randn(n, 8, requires_grad=True)
    if kind == "look":
        return regard.look(x, x, top=4)
    score = regard.scores.scaled_dot if kind == "fused" else regard.scores.Laplace(1.0)
    regard.attend(x, x, x, score=score, dropout=0.1, engine="stream").sum().backward()
for kind in ("fused", "any score", "look"):
    run(kind, 500)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run(kind, 5000)
    print(resident("VmHWM") - before)
"""
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    grown = [float(number) for number in run.stdout.split()]
    assert len(grown) == 3
    assert max(grown) < 60, grown


def test_inference_mode_reaches_the_threads():
    with torch.inference_mode():
        x = torch.randn(2, 3, 600, 8)
        assert regard.look(x, x, top=2).weight.shape == (2, 3, 600, 2)
        assert regard.attend(x, x, x, dropout=0.1).shape == x.shape
        assert_close(regard.attend_parts(x, x, x).mean, regard.attend(x, x, x))


def test_hooks_of_a_parameter_see_the_whole_gradient_once():
    query, key, value = (x.detach() for x in inputs())
    score = score_case("tanh").ours
    (plain,) = torch.autograd.grad(regard.attend(query, key, value, score=score, engine="dense").sum(), score.weight)
    calls = []
    hook = score.weight.register_hook(lambda gradient: calls.append(1) or 2 * gradient)
    for engine in ("dense", Stream(3)):
        calls.clear()
        found = torch.autograd.grad(regard.attend(query, key, value, score=score, engine=engine).sum(), score.weight)
        assert_close(found[0], 2 * plain)
        assert len(calls) == 1
    hook.remove()


def test_a_score_that_draws_random_numbers_draws_the_same_in_backward():
    query, key, value = inputs()

    def score(query, key):
        return torch.dropout(query @ key.mT, 0.5, train=True)

    before = torch.get_rng_state()
    mean = regard.attend(query, key, value, score=score, engine=Stream(64))
    (found,) = torch.autograd.grad(mean.sum(), query, retain_graph=True)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    score(query[..., :1, :], key[..., :1, :])  # the probe for parameters
    wanted = regard.attend(query, key, value, score=score, engine="dense")
    assert_close(mean, wanted)
    assert_close(found, torch.autograd.grad(wanted.sum(), query)[0])
    assert torch.equal(after, torch.get_rng_state())  # backward leaves the generator as it found it


def test_gradients_of_a_single_input():
    query, key, value = inputs()
    for score in (scores.scaled_dot, score_case("tanh").ours, scores.Laplace(2.0)):
        for wanted in (query, key, value):
            tensors = [x if x is wanted else x.detach() for x in (query, key, value)]
            found, expected = (
                torch.autograd.grad(regard.attend(*tensors, score=score, engine=engine).sum(), wanted)[0]
                for engine in (Stream(3), "dense")
            )
            assert_close(found, expected)


def test_a_subclass_may_change_the_score():
    class Softer(scores.Bilinear):
        def forward(self, query, key):
            return super().forward(query, key) / 10

    query, key, value = (x.detach() for x in inputs())
    score = Softer(query.shape[-1], key.shape[-1]).double()
    assert regard.plan(query, key, value, score=score).engine == "dense"
    for engine in (None, "stream"):
        assert_close(
            regard.attend(query, key, value, score=score, engine=engine),
            regard.attend(query, key, value, score=lambda q, k: score(q, k), engine="dense"),
        )


@pytest.mark.parametrize("mask", ["causal", "causal and padding", "padding and causal bias"])
@pytest.mark.parametrize(("queries", "keys"), [(700, 600), (600, 700), (513, 1030)])
def test_causal_masks_over_many_blocks(queries, keys, mask):
    query, key, value = (rand(2, n, 4, seed=s).requires_grad_() for s, n in enumerate((queries, keys, keys)))
    lengths = masks.padding(torch.tensor([0, 531]))
    mask = {
        "causal": masks.causal,
        "causal and padding": masks.both(masks.causal, lengths),
        "padding and causal bias": masks.both(masks.both(lengths, rand(keys)), masks.causal),
    }[mask]
    answers = []
    for engine in ("stream", "dense"):
        mean = regard.attend(query, key, value, mask=mask, engine=engine)
        answers.append([mean, *gradients([mean], [query, key, value])])
    assert_close(*answers)
    weight = regard.look(query, key, mask=mask)
    top = regard.look(query, key, mask=mask, top=5)
    assert_close(top.weight, weight.topk(5).values)
    assert bool((top.index <= torch.arange(queries).unsqueeze(-1)).all())


def test_parameters_of_a_functional_call_are_used_in_backward():
    score = scores.Additive(5, 5, 3).double()
    replaced = {name: (1.5 * parameter.detach()).requires_grad_() for name, parameter in score.named_parameters()}
    query, key, value = (rand(2, 7, 5, seed=s).requires_grad_() for s in (1, 2, 3))

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.score = score

        def forward(self, engine):
            return regard.attend(query, key, value, score=self.score, engine=engine)

    found = []
    for engine in ("dense", Stream(3)):
        mean = torch.func.functional_call(Holder(), {f"score.{name}": x for name, x in replaced.items()}, (engine,))
        found.append(torch.autograd.grad(mean.square().sum(), [query, key, value, *replaced.values()]))
    assert_close(*found)


@pytest.mark.parametrize("holder", ["table", "lengths", "shifted"])
@pytest.mark.parametrize("engine", ["stream", Stream(4)])
@pytest.mark.parametrize("score", [scores.scaled_dot, lambda query, key: query @ key.mT])
def test_a_mask_changed_in_place_before_backward_raises(holder, engine, score):
    x = rand(2, 3, 9, 4).requires_grad_()
    inside = torch.tensor([3, 5]) if holder != "table" else torch.ones(9, 9).tril().bool()
    mask = inside if holder == "table" else masks.padding(inside)
    mask = masks.shifted(masks.both(mask, masks.causal), 2) if holder == "shifted" else mask
    mean = regard.attend(x, x, x, score=score, mask=mask, engine=engine)
    inside.fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean.sum().backward()


def test_a_mask_made_in_inference_mode_works_in_training():
    x = rand(2, 9, 4).requires_grad_()
    with torch.inference_mode():
        mask = torch.ones(9, 9).tril().bool()
    regard.attend(x, x, x, mask=mask, engine="stream").sum().backward()
    assert x.grad is not None


def test_a_score_that_changes_before_backward_raises():
    x = rand(2, 11, 4).requires_grad_()
    scale = [1.0]
    mean = regard.attend(x, x, x, score=lambda query, key: -scale[0] * torch.cdist(query, key), engine=Stream(4))
    scale[0] = 3.0  # as a loop variable does by the end of the loop
    with pytest.raises(
        RuntimeError, match=r"changed between forward and backward.*add up to a sum that is off by .* bind the loop"
    ):
        mean.sum().backward()
    scale[0] = 1.0
    mean = regard.attend(x, x, x, score=lambda query, key: -scale[0] * torch.cdist(query, key), engine=Stream(4))
    mean.sum().backward()


def test_hidden_rows_and_nan_do_not_count_as_changed_scores():
    query, key, value = (rand(2, 7, 5, seed=s) for s in (1, 2, 3))
    query[0, 0] = torch.nan
    query, mask = query.requires_grad_(), torch.ones(7, 7).bool()
    mask[3] = False
    mean = regard.attend(query, key, value, score=lambda q, k: -torch.cdist(q, k), mask=mask, engine=Stream(3))
    mean.sum().backward()
    assert query.grad[0, 0].isnan().all()
    assert (query.grad[1, 3] == 0).all()


def test_scores_are_recomputed_under_the_same_autocast():
    found = []
    for engine in ("dense", "stream"):
        tensors = [rand(2, 3, 70, 8, seed=s, dtype=torch.float32).requires_grad_() for s in (1, 2, 3)]
        with torch.autocast("cpu", dtype=torch.float16):
            mean = regard.attend(*tensors, score=lambda query, key: 5 * query @ key.mT, engine=engine)
        mean.square().sum().backward()
        found.append([x.grad for x in tensors])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 0.005 * one.abs().max()  # it was twice that in the precision of the tensors


def test_a_score_of_other_parameters_raises_even_if_they_are_equal():
    """As a loop variable does by the end of the loop."""
    x, scale = rand(2, 11, 4).requires_grad_(), [torch.ones((), dtype=torch.float64, requires_grad=True)]
    mean = regard.attend(x, x, x, score=lambda query, key: -scale[0] * torch.cdist(query, key), engine=Stream(4))
    scale[0] = torch.ones((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"changed between forward and backward.*no longer depend on 1 parameters"):
        mean.sum().backward()


def test_stream_inside_activation_checkpointing():
    query, key, value = (rand(2, 9, 5, seed=s).requires_grad_() for s in (1, 2, 3))
    score = scores.Additive(5, 5, 3).double()
    parameters = [query, key, value, *score.parameters()]

    def run(query):
        return regard.attend(query, key, value, score=score, engine=Stream(4)).square().sum()

    again = torch.utils.checkpoint.checkpoint(run, query, use_reentrant=False)
    assert_close(torch.autograd.grad(again, parameters), torch.autograd.grad(run(query), parameters))


def test_the_meta_device_gives_shapes():
    query = torch.empty(2, 300, 5, device="meta")
    assert regard.attend(query, query, query, score=lambda q, k: q @ k.mT, engine="stream").shape == query.shape


def test_float16_is_summed_in_float32():
    """The sum of 70,000 ones overflows float16."""
    key = torch.zeros(70_000, 1, dtype=torch.float16)
    value = torch.arange(70_000).remainder(3).to(torch.float16).unsqueeze(-1).requires_grad_()
    query = torch.ones(1, 1, dtype=torch.float16)
    found = regard.attend(query, key, value, score=lambda q, k: q * k.mT, engine="stream")
    assert_close(found.item(), 1.0, rtol=2e-3, atol=0)
    found.sum().backward()
    assert_close(value.grad.float().sum().item(), 1.0, rtol=0.05, atol=0)  # of numbers near 1 / 70,000


BFLOAT16 = """
import torch, regard
key = torch.zeros(4000, 8, dtype=torch.bfloat16).requires_grad_()
query = torch.ones(4, 8).bfloat16().requires_grad_()
for more in ({"score": lambda a, b: (a @ b.mT) * 0.5 + 0}, {"dropout": 0.1}):
    regard.attend(query, key, key, engine="stream", **more).float().sum().backward()
print(key.grad.float().sum().item())
"""


@pytest.mark.slow
def test_bfloat16_is_summed_in_float32():
    """In a process of its own: oneDNN must be told not to use partial support of bfloat16."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run(
        [sys.executable, "-c", BFLOAT16], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 60 < float(done.stdout) < 68  # 4 queries, 8 numbers, twice


def test_a_mask_is_called_once_for_all_heads_of_a_thread():
    """ALiBi, a bias by head: with one block per head it would be evaluated for all heads in each of them."""
    heads, length, pairs = 6, 600, []
    rates = torch.linspace(0.1, 1.0, heads).view(heads, 1, 1)

    def alibi(query_index, key_index):
        apart = -(query_index - key_index).abs() * rates
        pairs.append(apart[..., 0, :, :].numel())
        return apart

    query, key, value = (torch.randn(2, heads, length, 8, requires_grad=True) for _ in range(3))
    mean = regard.attend(query, key, value, mask=alibi, engine="stream")
    assert sum(pairs) < 3 * length**2  # of 12 heads
    index = torch.arange(length)
    expected = regard.attend(query, key, value, mask=alibi(index[:, None], index), engine="dense")
    assert_close(mean, expected)
    slopes = [torch.autograd.grad(x.square().sum(), (query, key, value)) for x in (mean, expected)]
    assert_close(*slopes, rtol=1e-4, atol=1e-5)
