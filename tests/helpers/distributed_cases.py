"""Cases of attention over several processes, and the program that runs them: one start for all cases.

    python -m helpers.distributed_cases FOLDER

The program makes the inputs and what one process gives, and is then forked into 1, 2, 3 and 4 processes. Each writes
FOLDER/SIZE-RANK.json: the error of each case, or null.
"""

import copy
import datetime
import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

import regard
from regard import masks, scores, weighing
from regard.distributed import ring
from regard.distributed.processes import Processes
from regard.layers import Alibi, MultiHeadAttention, Rotary
from regard.layers.multi_head import Heads
from regard.models import TransformerConfig, language_model

SIZES = (1, 2, 3, 4)
QUERIES, KEYS, SIZE, VALUES, LEADING = 13, 17, 8, 5, (2, 3)
# Of unequal length, and empty: the first, the last, one between.
QUERY_LENGTHS = {1: [13], 2: [8, 5], 3: [5, 0, 8], 4: [3, 6, 0, 4]}
KEY_LENGTHS = {1: [17], 2: [6, 11], 3: [9, 8, 0], 4: [0, 7, 4, 6]}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def part_of(lengths, rank):
    """The rows of a process."""
    return slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))


def made_scores():
    """Scores, each with its parameters."""
    additive = scores.Additive(SIZE, SIZE, 7).double()
    gaussian = scores.Gaussian(nn.Parameter(torch.linspace(1.5, 3, SIZE, dtype=torch.float64)))
    bilinear = scores.Bilinear(SIZE, SIZE).double()
    strength = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def closure(query, key):
        return -strength.exp() * (query[..., :, None, :] - key[..., None, :, :]).abs().sum(dim=-1)

    modules = {"additive": additive, "gaussian": gaussian, "bilinear": bilinear}
    return {
        "scaled_dot": (scores.scaled_dot, []),
        "closure": (closure, [strength]),
        **{name: (module, list(module.parameters())) for name, module in modules.items()},
    }


def made_masks():
    """Masks of all queries and keys, each with its parameters."""
    holes = rand(*LEADING, QUERIES, KEYS, seed=4) > -0.3
    holes[0, 1, 2] = False  # a query that may look at nothing
    bias = rand(*LEADING, QUERIES, KEYS, seed=6).requires_grad_()
    row = rand(KEYS, seed=7).requires_grad_()
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([11, 0])
    diagonal = masks.blocks(lambda query, key: (query - key).abs() < 2, QUERIES, KEYS, size=2)
    return {
        "none": (None, []),
        "causal": (masks.causal, []),
        "window": (masks.window(2), []),
        "padding": (masks.padding(lengths), []),
        "causal padding": (masks.both(masks.causal, masks.padding(lengths)), []),
        "documents": (masks.documents(torch.tensor([0] * 6 + [1] * 8 + [2] * 3)), []),
        "global": (masks.global_and_window(1, radius=1), []),
        "blocks": (diagonal, []),
        "shifted": (masks.shifted(masks.causal, 4), []),
        "boolean": (holes, []),
        "bias": (bias, [bias]),
        "causal row bias": (masks.both(masks.causal, row), [row]),
        "relative": (lambda query, key: slope * (key - query), [slope]),
    }


@dataclass
class Case:
    """A call whose values and gradients must be those of one process."""

    settings: dict
    parameters: list
    queries: int = QUERIES
    dtype: torch.dtype = torch.float64
    key_heads: int = LEADING[-1]
    expected: list = field(default_factory=list)

    def tensors(self):
        """Query, key, value, and the gradient of the result."""
        made = (
            rand(*LEADING, self.queries, SIZE, seed=1),
            rand(LEADING[0], self.key_heads, KEYS, SIZE, seed=2),
            rand(LEADING[0], self.key_heads, KEYS, VALUES, seed=3),
            rand(*LEADING, self.queries, VALUES, seed=5),
        )
        return [x.to(self.dtype) for x in made]

    def results(self, attend, tensors, seed=7, **more):
        """The mean; gradients of query, key, value and parameters."""
        *inputs, grad = tensors
        inputs = [x.clone().requires_grad_() for x in inputs]
        torch.manual_seed(seed)
        mean = attend(*inputs, **self.settings, **more)
        grads = torch.autograd.grad((mean * grad).sum(), [*inputs, *self.parameters], allow_unused=True)
        return [
            mean.detach(),
            *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, [*inputs, *self.parameters], strict=True)),
        ]

    def prepare(self):
        self.expected = self.results(regard.attend, self.tensors(), engine="dense")

    def run(self, rank, size):
        lengths = QUERY_LENGTHS[size] if self.queries == QUERIES else [0] * (size - 1) + [self.queries]
        rows, columns = part_of(lengths, rank), part_of(KEY_LENGTHS[size], rank)
        query, key, value, grad = self.tensors()
        tensors = [query[..., rows, :], key[..., columns, :], value[..., columns, :], grad[..., rows, :]]
        # Weights are dropped by the seed of the first process.
        mean, *grads = self.results(regard.distributed.attend, tensors, seed=7 + rank)
        for grad in grads[3:]:
            dist.all_reduce(grad)
        expected = [x[..., part, :] for x, part in zip(self.expected[:4], (rows, rows, columns, columns), strict=True)]
        for got, want in zip([mean, *grads], [*expected, *self.expected[4:]], strict=True):
            assert got.dtype == self.dtype
            assert_close(got, want, rtol=TOLERANCE[self.dtype], atol=TOLERANCE[self.dtype])


def value_cases():
    """Each mask with an inner product, each score under a causal mask, and single settings."""
    by_score, by_mask = made_scores(), made_masks()

    def case(score="scaled_dot", mask="none", parameters=(), **settings):
        fields = {name: settings.pop(name) for name in ("queries", "dtype", "key_heads") if name in settings}
        (score, first), (mask, second) = by_score[score], by_mask[mask]
        return Case({"score": score, "mask": mask, **settings}, [*first, *second, *parameters], **fields)

    logit = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    return {
        **{f"dot, {name}": case(mask=name) for name in by_mask},
        **{f"{name}, causal": case(name, "causal") for name in by_score if name != "scaled_dot"},
        "additive, padding": case("additive", "padding"),
        "additive, bias": case("additive", "bias"),
        "gaussian, window": case("gaussian", "window"),
        "dropout": case(mask="causal", dropout=0.4),
        "additive, dropout": case("additive", dropout=0.4),
        "scale": case(scale=0.7),
        "grouped heads": case(mask="causal", key_heads=1),
        "sinks": case(parameters=[logit], weigh=weighing.sinks(logit)),
        "float32": case(mask="causal", dtype=torch.float32),
        "bfloat16": case(dtype=torch.bfloat16),
        "one query": case(queries=1),
        "one query, additive, dropout": case("additive", queries=1, dropout=0.4),
        "two queries, causal": case(mask="shifted", queries=2),
    }


def sequence(rank, size):
    """A sequence for layers, and this process's rows of it."""
    return rand(2, KEYS, 12, seed=9), part_of(KEY_LENGTHS[size], rank)


def layer_case(rank, size):
    """Positions count from the first process; gradients of weights are summed, as DistributedDataParallel does."""
    whole, rows = sequence(rank, size)
    for positions in (Rotary(6), Alibi(2)):
        torch.manual_seed(0)
        alone = MultiHeadAttention(12, Heads(2), positions=positions).double()
        layer = MultiHeadAttention(12, Heads(2), positions=positions, group=dist.group.WORLD).double()
        layer.load_state_dict(alone.state_dict())
        together = nn.parallel.DistributedDataParallel(copy.deepcopy(layer))
        mean = alone(whole, mask=masks.causal)
        mean.square().sum().backward()
        got = layer(whole[:, rows], mask=masks.causal)
        assert_close(got, mean[:, rows], rtol=1e-10, atol=1e-10)
        together(whole[:, rows], mask=masks.causal).square().sum().backward()
        for ours, theirs in zip(alone.parameters(), together.parameters(), strict=True):
            assert_close(theirs.grad * size, ours.grad, rtol=1e-9, atol=1e-9)


def cross_case(rank, size):
    """A layer's source lies in several processes too."""
    whole, rows = sequence(rank, size)
    layer = MultiHeadAttention(12, 2, key_size=6, group=dist.group.WORLD).double()
    for parameter in layer.parameters():
        dist.broadcast(parameter.detach(), src=0)
    source = whole[..., :6].flip(1)
    alone = MultiHeadAttention(12, 2, key_size=6).double()
    alone.load_state_dict(layer.state_dict())
    assert_close(layer(whole[:, rows], source[:, rows]), alone(whole, source)[:, rows], rtol=1e-10, atol=1e-10)


def refusals_case(rank, size):
    """What a layer over several processes cannot do."""
    layer = MultiHeadAttention(12, 2, group=dist.group.WORLD)
    x = torch.randn(1, 3, 12)
    if size > 1:
        assert "need all keys in one process" in message(ValueError, layer.look, x)
        with regard.watch(layer):
            assert "need all keys in one process" in message(ValueError, layer, x)
    assert "takes no cache" in message(ValueError, layer, x, cache=regard.layers.KeyValues(5))


def one_learner_case(rank, size):
    """Gradients reach the one process that has some; without any, the result has none."""
    query, key, value = (rand(QUERIES, SIZE, seed=seed) for seed in (1, 2, 3))
    expected = torch.autograd.grad(regard.attend(query, whole := key.clone().requires_grad_(), value).sum(), whole)[0]
    rows = part_of(QUERY_LENGTHS[size], rank)
    own = key[rows].clone().requires_grad_(rank == 0)
    mean = regard.distributed.attend(query[rows], own, value[rows])
    assert mean.requires_grad
    mean.sum().backward()
    if rank == 0:
        assert_close(own.grad, expected[rows], rtol=1e-10, atol=1e-10)
    assert own.grad is None or rank == 0
    assert not regard.distributed.attend(query[rows], key[rows], value[rows]).requires_grad
    with torch.no_grad():
        assert not regard.distributed.attend(query[rows], own, value[rows]).requires_grad


def twice_case(rank, size):
    """Several calls in one graph, and a second derivative, which raises."""
    x = rand(KEYS, SIZE, seed=2).requires_grad_()
    once = regard.attend(x, x, x)
    (expected,) = torch.autograd.grad(regard.attend(once, once, x).square().sum(), x)
    rows = part_of(KEY_LENGTHS[size], rank)
    own = x.detach()[rows].clone().requires_grad_()
    first = regard.distributed.attend(own, own, own)
    mean = regard.distributed.attend(first, first, own)
    (got,) = torch.autograd.grad(mean.square().sum(), own, create_graph=size > 1)
    assert_close(got.detach(), expected[rows], rtol=1e-10, atol=1e-10)
    if size > 1 and got.numel():
        assert "first derivatives only" in message(RuntimeError, torch.autograd.grad, got.sum(), own)


def messages_case(rank, size):
    """Messages have at most `ROWS` rows, and there are none for keys that no query sees. `plan` says so."""
    lengths = []

    def post(self, sends, receives, before=Processes.post):
        lengths.extend(x.shape[-2] for _, x in sends)
        return before(self, sends, receives)

    x = rand(1, 1, 6, 16)  # 6 rows in each process
    tried = {}
    Processes.post, original = post, Processes.post
    try:
        for name, mask in {"all": None, "causal": masks.causal, "window": masks.window(2)}.items():
            regard.distributed.attend(x, x, x, mask=mask)
            tried[name] = sum(lengths)
            assert max(lengths, default=0) <= ring.ROWS
            lengths.clear()
    finally:
        Processes.post = original
    if size == 1:
        return
    after = size - 1 - rank  # processes after this one
    assert tried["all"] == 2 * 6 * (size - 1)
    assert tried["causal"] == 2 * 6 * after
    # A piece has 4 rows; the first and the second are both within 2 of a neighbour on that side only.
    assert tried["window"] == 2 * (4 * (rank > 0) + 2 * (after > 0))
    plan = regard.distributed.plan(x, x, x, mask=masks.causal)
    assert plan.engine == "ring"
    assert f"{size * (size - 1) // 2} of {size * (size - 1)} hops are needed" in plan.why
    gather = regard.distributed.plan(x[..., :1, :], x, x)
    assert gather.engine == "gather"
    assert gather.algorithm == "stream: fused loops, head by head"


def groups_case(rank, size):
    """A group of some of the processes; the others may not call."""
    members = list(range(1, size))
    group = dist.new_group(members or [0])
    x = rand(5, SIZE)
    if rank in members or size == 1:
        place = members.index(rank) if members else 0
        parts = [rand(5, SIZE, seed=number) for number in range(max(1, len(members)))]
        got = regard.distributed.attend(x, parts[place], parts[place], group=group)
        assert_close(got, regard.attend(x, torch.cat(parts), torch.cat(parts)), rtol=1e-10, atol=1e-10)
    else:
        assert "not in the group" in message(ValueError, regard.distributed.attend, x, x, x, group=group)


def errors_case(rank, size):
    """Wrong input in one process is an error in all of them."""
    if size == 1:
        return
    x, attend = torch.randn(3, SIZE), regard.distributed.attend
    told = message((TypeError, RuntimeError), attend, x, x, x.long() if rank == 1 else x)
    assert "floating point" in told if rank == 1 else "process 1 of the group raised an error" in told
    double = x.double() if rank == 1 else x
    assert "agree in the dtype, torch.float32 and torch.float64" in message(ValueError, attend, double, double, double)
    wide = torch.randn(3, SIZE + 1) if rank == size - 1 else x
    assert f"shape of key beside its length, [3, {SIZE}] and" in message(
        ValueError, attend, x, wide, x, score=scores.constant
    )
    assert "agree in dropout, 0.0 and 0.5" in message(ValueError, attend, x, x, x, dropout=0.5 * (rank == 1))
    with torch.set_grad_enabled(rank == 0):
        assert "whether gradients are enabled" in message(ValueError, attend, x, x, x)
    assert "softmax or sinks only, got hard" in message(ValueError, attend, x, x, x, weigh=weighing.hard)
    assert "mask must broadcast" in message(ValueError, attend, x, x, x, mask=torch.ones(3, 3).bool())
    assert "lets no query look" in message(
        ValueError, attend, x, x, x, mask=torch.zeros(3 * size, 3 * size, dtype=torch.bool)
    )


def sharded_case(rank, size):
    """torch's `fully_shard`: a language model whose weights lie in two processes trains as one that has them all."""
    if size != 2:
        return
    from torch.distributed.fsdp import fully_shard

    def made():
        torch.manual_seed(0)
        return language_model(11, TransformerConfig(blocks=2, heads=2, size=16), context=16).double()

    alone, sharded = made(), made()
    for module in (*sharded.decoder.blocks, sharded):
        fully_shard(module, mesh=init_device_mesh("cpu", (size,)))
    tokens = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))
    for model, rows in ((sharded, tokens[rank::size]), (alone, tokens)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            logits = model(rows[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(sharded.parameters(), alone.parameters(), strict=True):
        assert ours.to_local().numel() < theirs.numel()
        assert_close(ours.full_tensor(), theirs, rtol=1e-6, atol=1e-8)


def message(kind, function, *args, **kwargs):
    """The message of the error that a call raises."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind} was raised")


VALUE_CASES = [
    *[f"dot, {name}" for name in made_masks()],
    *[f"{name}, causal" for name in made_scores() if name != "scaled_dot"],
    *["additive, padding", "additive, bias", "gaussian, window", "dropout", "additive, dropout", "scale"],
    *["grouped heads", "sinks", "float32", "bfloat16", "one query", "one query, additive, dropout"],
    "two queries, causal",
]
OTHER_CASES = {
    "layer": layer_case,
    "cross-attention": cross_case,
    "refusals": refusals_case,
    "one learner": one_learner_case,
    "twice": twice_case,
    "messages": messages_case,
    "groups": groups_case,
    "errors": errors_case,
    "sharded language model": sharded_case,
}


def dies_at_once(rank):
    """A process ends before attention."""
    if rank == 1:
        return
    x = torch.randn(5, SIZE)
    regard.distributed.attend(x, x, x)


def dies_before_backward(rank):
    """A process ends after forward."""
    x = torch.randn(5, SIZE, requires_grad=True)
    mean = regard.distributed.attend(x, x, x)
    if rank != 1:
        mean.sum().backward()


def dies_in_a_score(rank):
    """A process ends in the middle of forward."""
    x = torch.randn(50, SIZE)

    def score(query, key):
        if rank == 1:
            os._exit(1)
        return query @ key.mT

    regard.distributed.attend(x, x, x, score=score)


def does_not_answer(rank):
    """A process lives, and does not take part in backward."""
    x = torch.randn(5, SIZE, requires_grad=True)
    mean = regard.distributed.attend(x, x, x)
    if rank == 1:
        time.sleep(6)
    else:
        mean.sum().backward()


DEATHS = {case.__name__: case for case in (dies_at_once, dies_before_backward, dies_in_a_score, does_not_answer)}


def fork(folder, name, size, work, timeout):
    """Run `work(rank)` in as many processes, which form a group; its result goes to FOLDER/NAME-RANK.json."""
    children = []
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            limit = datetime.timedelta(seconds=timeout)
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/{name}.store", rank=rank, world_size=size, timeout=limit
            )
            result = work(rank)
            (Path(folder) / f"{name}-{rank}.json").write_text(json.dumps(result))
        finally:
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def run_all(cases, rank, size):
    """The error of each case, or None. Where a case leaves the others waiting, the cases after it are not run."""
    found = dict.fromkeys(cases, "not run, because of an error before")
    for name, case in cases.items():
        try:
            case(rank, size)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
        try:
            dist.barrier()
        except RuntimeError:
            break
    return found


def run_death(case, rank):
    """The error that a process gets, and after how many seconds."""
    begin = time.perf_counter()
    try:
        case(rank)
    except Exception as error:
        return [type(error).__name__, str(error), time.perf_counter() - begin]
    return None


def main(folder):
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ring.ROWS = 4  # several messages for each part
    cases = value_cases()
    for case in cases.values():
        case.prepare()
    regard.attend(torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4), engine="stream")  # loads the loops
    runs = {**{name: case.run for name, case in cases.items()}, **OTHER_CASES}
    for size in SIZES:
        fork(folder, str(size), size, lambda rank, size=size: run_all(runs, rank, size), 30)
    for name, case in DEATHS.items():
        fork(folder, name, 3, lambda rank, case=case: run_death(case, rank), 3)


if __name__ == "__main__":
    main(sys.argv[1])
