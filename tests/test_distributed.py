"""Attention over several processes gives the numbers of one, and an error if one of them dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.distributed_cases import DEATHS, OTHER_CASES, SIZES, VALUE_CASES
from torch.testing import assert_close

import regard

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the processes wrote: one program is started, which is forked for each number of processes."""
    folder = tmp_path_factory.mktemp("distributed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "helpers.distributed_cases", str(folder)]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", [*VALUE_CASES, *OTHER_CASES])
@pytest.mark.parametrize("size", SIZES)
def test_several_processes_attend_as_one(folder, size, case):
    for rank in range(size):
        error = json.loads((folder / f"{size}-{rank}.json").read_text())[case]
        assert error is None, f"process {rank}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize("case", DEATHS)
def test_a_process_that_dies_or_does_not_answer_is_an_error_in_the_others(folder, case):
    for rank in (0, 2):
        kind, message, seconds = json.loads((folder / f"{case}-{rank}.json").read_text())
        assert kind == "RuntimeError"
        assert "another process of the group died, or did not answer" in message
        assert seconds < 20


def test_a_process_alone_attends_to_its_own_keys():
    query, key = torch.randn(3, 4), torch.randn(5, 4)
    assert_close(regard.distributed.attend(query, key, key, scale=0.3), regard.attend(query, key, key, scale=0.3))
    assert regard.distributed.plan(query, key, key) == regard.plan(query, key, key)
