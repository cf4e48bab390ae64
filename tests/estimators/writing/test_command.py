"""`regard fit writer`, `write`, `evidence` and `info`, as they are typed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from helpers.talking import refused, run
from helpers.writing_cases import LINE
from torch.testing import assert_close

import regard
from regard.estimators.subject import run_folder
from regard.models.language import LanguageModel

TINY = ["--context=16", "--blocks=1", "--heads=2", "--size=16", "--steps=20", "--validate-every=5"]
FIT = ["fit", "writer", "book.txt", "--out", "model", *TINY]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(LINE * 40)


@pytest.fixture
def model(tiny):
    """A fitted model, and its folder `model`."""
    tiny.save("model")
    return tiny


def test_fit_write_evidence_and_info(tmp_path):
    result = run(*FIT)
    assert result.stdout == ""
    assert result.stderr.startswith("Writer on book.txt, 31 tokens, held-out loss ")
    assert result.stderr.endswith(" → model\n")
    assert not (tmp_path / "model.run").exists()
    model = regard.load("model")
    assert model.size == 16
    assert run("write", "model", "--prompt", "the ", "--length", 30, "--seed", 4).stdout == (
        model.write("the ", 30, seed=4) + "\n"
    )
    assert run("write", "model", "--prompt", "the ", "--temperature", 0).stdout == (
        model.write("the ", 200, temperature=0) + "\n"
    )
    (tmp_path / "line.txt").write_text("the fox")
    run("evidence", "model", "line.txt", "--top", 2, "--out", "e.csv", "--plot", "e.png")
    frame = pd.read_csv("e.csv")
    assert frame["token"].iloc[0] == "t"
    assert (tmp_path / "e.png").stat().st_size > 1000
    message = refused("evidence", "model", "line.txt", "--plot", "e.png", "--row", 3)
    assert "--row must be between 1 and 1, the number of text in line.txt, got 3" in message
    facts = run("info", "model").stdout
    assert "characters, vocabulary of 31" in facts
    assert "parameters" in facts


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_a_process_writes_a_stream():
    command = [sys.executable, "-m", "regard", "write", "model", "--prompt", "the dog", "--length", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(7) == "the dog"
        rest = process.stdout.read()
    assert process.returncode == 0
    assert len(rest) == 41


@pytest.mark.slow
def test_a_stopped_run_resumes(monkeypatch):
    loss, calls = LanguageModel.loss, []

    def stopped(model, batch):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return loss(model, batch)

    monkeypatch.setattr(LanguageModel, "loss", stopped)
    message = run(*FIT, code=130).stderr
    assert message == "stopped: the checkpoint is in model.run; resume with the same command and --resume\n"
    for verb, *words in (["info"], ["write", "--prompt", "the"], ["evidence", "book.txt"]):
        message = refused(verb, "model.run", *words)
        assert "model.run is a training checkpoint (step 10), not a finished model; resume it with" in message
    with pytest.raises(ValueError, match=r"is a training checkpoint .* fit\(…, checkpoint=…, resume=True\)"):
        regard.load("model.run")
    assert json.loads(Path("model.run/config.json").read_text())["checkpoint"]["steps"] == 10
    assert "is the checkpoint of an unfinished run (step 10)" in refused(*FIT)
    run(*FIT, "--resume")
    run("fit", "writer", "book.txt", "--out", "whole", *TINY)
    assert regard.load("model").write("the", 50) == regard.load("whole").write("the", 50)


def test_a_run_that_is_stopped_at_once_leaves_nothing(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LanguageModel, "loss", stop)
    assert run(*FIT, code=130).stderr == "stopped: no checkpoint was written yet\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt"]


@pytest.mark.slow
def test_ctrl_c_prints_one_line_and_exits_with_130():
    command = [sys.executable, "-m", "regard", *FIT, "--steps=100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def accept_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background process may ignore them

    with subprocess.Popen(command, preexec_fn=accept_interrupts, **pipes) as process:
        try:
            while not Path("model.run/config.json").exists():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, message = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert message == "stopped: the checkpoint is in model.run; resume with the same command and --resume\n"


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("option", [("--temperature", -1), ("--top-k", 0), ("--top-p", 1.5), ("--seed", -1)])
def test_nothing_is_written_before_an_error(option):
    assert str(option[1]) in refused("write", "model", "--prompt", "the ", *option)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "book.txt", "--out", "m"], "regard fit needs a kind of data before the file, got 'book.txt'"),
        (["fit", "writers", "book.txt", "--out", "m"], "did you mean regard fit writer?"),
        (
            ["fit", "writer", "book.txt", "--out", "m", "--kernel", "boxcar"],
            "regard fit writer has no option --kernel; it is an option of regard fit table",
        ),
        (["fit", "writer", "book.txt", "--out", "m", "--sise", "3"], "no option --sise; did you mean --size?"),
        (["fit", "writer", "book.txt", "--out", "m", "--steps", "0"], "--steps: steps must be a positive whole number"),
        (["fit", "writer", "none.txt", "--out", "m"], "there is no file none.txt"),
        (["fit", "writer", "book.txt", "--out", "m", "--heads", "3"], "heads must divide size"),
        (["write", "none", "--prompt", "a"], "none is not a model folder"),
    ],
)
def test_an_error_is_one_line(words, message, tmp_path):
    assert message in refused(*words)
    assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("model")
def test_other_verbs_and_other_models_raise():
    assert "Writer has no predictions of a table; use regard write" in refused("predict", "model", "book.txt")
    regard.NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0]).save("table")
    assert "regard write needs a Writer, got a NadarayaWatson in table" in refused("write", "table", "--prompt", "a")
    assert "prompt must have at least one character" in refused("write", "model", "--prompt", "")


@pytest.mark.slow
def test_two_processes_train_one_model():
    run("fit", "writer", "book.txt", "--out", "alone", *TINY, "--dropout=0")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "regard"]
    command += ["fit", "writer", "book.txt", "--out", "both", *TINY, "--dropout=0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    alone, both = regard.load("alone"), regard.load("both")
    for one, two in zip(alone.model_.parameters(), both.model_.parameters(), strict=True):
        assert_close(one, two, atol=1e-4, rtol=1e-3)
    assert not Path("both.run").exists()


def test_resuming_without_a_checkpoint_warns_or_raises():
    message = run(*FIT, "--resume").stderr
    assert "model.run has no checkpoint to resume: training starts from the beginning" in message
    before = Path("model/config.json").read_bytes()
    message = refused(*FIT, "--resume")
    assert "model.run has no checkpoint to resume, and model holds a finished model; leave out --resume" in message
    assert Path("model/config.json").read_bytes() == before


def test_the_run_folder_is_beside_the_model_folder(tmp_path):
    assert run_folder(Path()) == tmp_path.with_name(f"{tmp_path.name}.run")
    assert run_folder(Path("a/b")) == Path("a/b.run")
