"""Work over threads: in order, as the caller has it, and over when the caller wants no more."""

import os
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks, weighing
from regard.compiled.threads import spread


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


def threads_of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_in_the_order_of_the_items(count):
    assert spread(lambda item: item * item, range(count)) == [item * item for item in range(count)]
    assert torch.get_num_threads() == 2
    assert threads_of_a_new_thread() == 2


def test_the_first_failure_is_raised_and_the_rest_is_left():
    done = []

    def task(item):
        done.append(item)
        time.sleep(0.01)
        raise KeyError(item)

    with pytest.raises(KeyError):
        spread(task, range(50))
    assert len(done) <= 2


@pytest.fixture
def interruptible():
    """As at a terminal: who runs tests in the background may have Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_who_interrupts_it_leaves_no_work_behind_and_torch_as_it_was():
    done = []

    def task(item):
        if not item:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does, while the caller waits
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(KeyboardInterrupt):
        spread(task, range(40))
    count = len(done)
    assert count < 10
    time.sleep(0.2)
    assert len(done) == count
    assert torch.get_num_threads() == 2
    assert threads_of_a_new_thread() == 2


def test_a_thread_that_starts_meanwhile_gets_as_many_cores_as_others():
    spread(abs, range(2))
    found = spread(lambda _: [threads_of_a_new_thread(), torch.get_num_threads()], range(20))
    assert found == [[2, 1]] * 20


def test_threads_that_start_while_attention_with_dropout_runs():
    x, running = torch.randn(1, 8, 256, 32), True

    def attend():
        while running:
            regard.attend(x, x, x, dropout=0.1)

    regard.attend(x, x, x, dropout=0.1)
    caller = threading.Thread(target=attend)
    caller.start()
    numbers = [threads_of_a_new_thread() for _ in range(100)]
    running = False
    caller.join()
    assert numbers == [2] * 100


def test_calls_from_several_threads_at_once_and_in_a_task():
    def nested(item):
        return spread(lambda other: item * other, range(3))

    results = []
    callers = [threading.Thread(target=lambda: results.append(spread(nested, range(5)))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[[0, item, 2 * item] for item in range(5)]] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    spread(abs, range(2))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, bytes(spread(abs, range(5))))
        os._exit(0)
    ready, _, _ = select.select([read], [], [], 20.0)
    if not ready:  # it waits for threads that only its parent has
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 9) == bytes(range(5))


CALLS = {
    "fused loops": {"mask": masks.window(9)},
    "own score": {"score": lambda query, key: torch.tanh(query @ key.mT), "engine": "stream"},
    "strips": {"weigh": weighing.softpick, "engine": "stream"},
    "torch's kernel": {"mask": masks.causal},
}


def values_and_gradients(name, seed):
    x = torch.randn(1, 2, 200, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    mean = regard.attend(x, x, x, **CALLS[name])
    return mean.detach(), torch.autograd.grad(mean.square().sum(), x)[0]


@pytest.mark.slow  # eight threads of Python take turns
@pytest.mark.parametrize("name", CALLS)
def test_eight_threads_attend_at_once(name):
    expected = [values_and_gradients(name, seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for found, alone in zip(pool.map(values_and_gradients, [name] * 8, range(8)), expected, strict=True):
            assert all(map(torch.equal, found, alone))


class Attended(torch.utils.data.Dataset):
    """What each kind of attention gives, computed where the item is asked for."""

    def __len__(self):
        return len(CALLS)

    def __getitem__(self, index):
        return values_and_gradients(list(CALLS)[index], index)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_a_data_loader_attend_after_their_parent_did():
    here = [values_and_gradients(name, index) for index, name in enumerate(CALLS)]
    loader = torch.utils.data.DataLoader(
        Attended(), batch_size=None, num_workers=2, timeout=60, multiprocessing_context="fork"
    )
    for found, expected in zip(loader, here, strict=True):
        assert_close(found, expected)
