"""Work over threads: in order, as the caller has it, and over when the caller wants no more."""

import signal
import threading
import time

import pytest
import torch

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
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does, while the caller waits
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
