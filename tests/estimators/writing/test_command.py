"""`regard fit writer`, `write`, `evidence` and `info`, as they are typed."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from torch.testing import assert_close
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.estimators.subject import run_folder

LINE = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
SMALL = ["--context=16", "--blocks=1", "--heads=2", "--size=16", "--steps=20", "--validate-every=5"]


def run(*words, code=0):
    found = CliRunner().invoke(app, list(map(str, words)), prog_name="regard")
    assert found.exit_code == code, found.stderr
    return found


def refused(*words):
    return run(*words, code=1).stderr


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(LINE * 40)


def test_fit_write_evidence_and_info(tmp_path):
    said = run("fit", "writer", "book.txt", "--out", "model", *SMALL)
    assert said.stdout == ""
    assert said.stderr.startswith("Writer on book.txt, 31 tokens, held-out loss ")
    assert said.stderr.endswith(" → model\n")
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
    said = refused("evidence", "model", "line.txt", "--plot", "e.png", "--row", 3)
    assert "--row must be between 1 and 1, the number of text in line.txt, got 3" in said
    told = run("info", "model").stdout
    assert "characters, vocabulary of 31" in told
    assert "parameters" in told


def test_it_streams_as_a_process():
    run("fit", "writer", "book.txt", "--out", "model", "--quiet", *SMALL)
    command = [sys.executable, "-m", "regard", "write", "model", "--prompt", "the dog", "--length", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(7) == "the dog"
        rest = process.stdout.read()
    assert process.returncode == 0
    assert len(rest) == 41


def test_a_stopped_run_resumes(monkeypatch):
    from regard.models.language import LanguageModel

    loss, calls = LanguageModel.loss, []

    def broken(model, batch):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return loss(model, batch)

    monkeypatch.setattr(LanguageModel, "loss", broken)
    said = run("fit", "writer", "book.txt", "--out", "model", *SMALL, code=130)
    assert said.stderr == ("stopped: the checkpoint is in model.run; resume with the same command and --resume\n")
    for verb in (["info"], ["write", "--prompt", "the"], ["evidence", "book.txt"]):
        told = refused(verb[0], "model.run", *verb[1:])
        assert (
            "model.run is a training checkpoint (step 10), not a finished model; resume it with the same regard fit"
            in told
        )
    with pytest.raises(ValueError, match=r"is a training checkpoint .* fit\(…, checkpoint=…, resume=True\)"):
        regard.load("model.run")
    assert json.loads(Path("model.run/config.json").read_text())["checkpoint"]["steps"] == 10
    assert "is the checkpoint of an unfinished run (step 10)" in refused(
        "fit", "writer", "book.txt", "--out", "model", *SMALL
    )
    run("fit", "writer", "book.txt", "--out", "model", "--resume", *SMALL)
    run("fit", "writer", "book.txt", "--out", "whole", *SMALL)
    assert regard.load("model").write("the", 50) == regard.load("whole").write("the", 50)


def test_a_run_that_is_stopped_at_once_leaves_nothing(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    from regard.models.language import LanguageModel

    monkeypatch.setattr(LanguageModel, "loss", stop)
    said = run("fit", "writer", "book.txt", "--out", "model", *SMALL, code=130)
    assert said.stderr == "stopped: no checkpoint was written yet\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt"]


def test_ctrl_c_is_a_line_and_exit_code_130():
    command = [sys.executable, "-m", "regard", "fit", "writer", "book.txt", "--out", "model"]
    command += [*SMALL, "--steps=100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = functools.partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # what runs behind a shell may be deaf to it
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:
        try:
            while not Path("model.run/config.json").exists():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert said == "stopped: the checkpoint is in model.run; resume with the same command and --resume\n"


@pytest.mark.parametrize("wrong", [("--temperature", -1), ("--top-k", 0), ("--top-p", 1.5), ("--seed", -1)])
def test_nothing_is_written_before_a_mistake_is_found(wrong):
    run("fit", "writer", "book.txt", "--out", "model", "--quiet", *SMALL)
    said = run("write", "model", "--prompt", "the ", *wrong, code=1)
    assert said.stdout == ""
    assert str(wrong[1]) in said.stderr


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
def test_a_mistake_is_one_clear_line(words, message, tmp_path):
    said = refused(*words)
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_verbs_of_other_models():
    run("fit", "writer", "book.txt", "--out", "model", "--quiet", *SMALL)
    assert "Writer has no predictions of a table; use regard write" in refused("predict", "model", "book.txt")
    pd.DataFrame({"x": [1.0, 2, 3], "y": [1.0, 2, 3]}).to_csv("t.csv", index=False)
    run("fit", "table", "t.csv", "--target", "y", "--out", "table")
    assert "regard write needs a Writer, got a NadarayaWatson in table" in refused("write", "table", "--prompt", "a")
    assert "give a prompt" in refused("write", "model", "--prompt", "")


def test_two_processes_train_one_model():
    run("fit", "writer", "book.txt", "--out", "alone", *SMALL, "--dropout=0")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "regard",
    ]
    command += ["fit", "writer", "book.txt", "--out", "both", *SMALL, "--dropout=0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    alone, both = regard.load("alone"), regard.load("both")
    for one, two in zip(alone.model_.parameters(), both.model_.parameters(), strict=True):
        assert_close(one, two, atol=1e-4, rtol=1e-3)
    assert not Path("both.run").exists()


def test_resuming_without_a_checkpoint_warns_or_raises():
    said = run("fit", "writer", "book.txt", "--out", "model", "--resume", *SMALL).stderr
    assert "model.run has no checkpoint to resume: training starts from the beginning" in said
    before = Path("model/config.json").read_bytes()
    said = refused("fit", "writer", "book.txt", "--out", "model", "--resume", *SMALL)
    assert "model.run has no checkpoint to resume, and model holds a finished model; leave out --resume" in said
    assert Path("model/config.json").read_bytes() == before


def test_the_run_folder_is_beside_the_model_folder(tmp_path):
    assert run_folder(Path()) == tmp_path.with_name(f"{tmp_path.name}.run")
    assert run_folder(Path("a/b")) == Path("a/b.run")
