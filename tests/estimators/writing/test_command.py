"""`regard fit --kind writer`, `write`, `evidence` and `info`, as they are typed."""

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
from regard.estimators.runs import run_of

LINE = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
SMALL = [
    f"--set={setting}" for setting in ("context=16", "blocks=1", "heads=2", "size=16", "steps=20", "validate_every=5")
]


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
    said = run("fit", "book.txt", "--kind", "writer", "--out", "model", *SMALL)
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
    assert "--row must be between 1 and 1, there is one text, got 3" in said
    told = run("info", "model").stdout
    assert "characters, 31 of them" in told
    assert "parameters" in told


def test_it_streams_as_a_process():
    run("fit", "book.txt", "--kind", "writer", "--out", "model", "--quiet", *SMALL)
    command = [sys.executable, "-m", "regard.cli", "write", "model", "--prompt", "the dog", "--length", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(7) == "the dog"
        rest = process.stdout.read()
    assert process.returncode == 0
    assert len(rest) == 41


def test_a_stopped_run_goes_on(monkeypatch):
    from regard.models.language import LanguageModel

    loss, calls = LanguageModel.loss, []

    def broken(model, batch):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return loss(model, batch)

    monkeypatch.setattr(LanguageModel, "loss", broken)
    said = run("fit", "book.txt", "--kind", "writer", "--out", "model", *SMALL, code=130)
    assert said.stderr == ("stopped: the run is kept in model.run; the same command with --resume goes on with it\n")
    for verb in (["info"], ["write", "--prompt", "the"], ["evidence", "book.txt"]):
        told = refused(verb[0], "model.run", *verb[1:])
        assert "model.run holds no model, but a run, as it stood after 10 steps: go on with it by regard fit" in told
    with pytest.raises(ValueError, match=r"holds no model, but a run, .* fit\(…, checkpoint=…, resume=True\)"):
        regard.load("model.run")
    assert json.loads(Path("model.run/config.json").read_text())["checkpoint"]["steps"] == 10
    assert "is the checkpoint of an unfinished run (step 10)" in refused(
        "fit", "book.txt", "--kind", "writer", "--out", "model", *SMALL
    )
    run("fit", "book.txt", "--kind", "writer", "--out", "model", "--resume", *SMALL)
    run("fit", "book.txt", "--kind", "writer", "--out", "whole", *SMALL)
    assert regard.load("model").write("the", 50) == regard.load("whole").write("the", 50)


def test_a_run_that_is_stopped_at_once_leaves_nothing(monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    from regard.models.language import LanguageModel

    monkeypatch.setattr(LanguageModel, "loss", stop)
    said = run("fit", "book.txt", "--kind", "writer", "--out", "model", *SMALL, code=130)
    assert said.stderr == "stopped: nothing was learned yet that could be kept\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt"]


def test_ctrl_c_is_a_line_and_exit_code_130():
    command = [sys.executable, "-m", "regard.cli", "fit", "book.txt", "--kind", "writer", "--out", "model"]
    command += [*SMALL, "--set=steps=100000"]
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
    assert said == "stopped: the run is kept in model.run; the same command with --resume goes on with it\n"


@pytest.mark.parametrize("wrong", [("--temperature", -1), ("--top-k", 0), ("--top-p", 1.5), ("--seed", -1)])
def test_nothing_is_written_before_a_mistake_is_found(wrong):
    run("fit", "book.txt", "--kind", "writer", "--out", "model", "--quiet", *SMALL)
    said = run("write", "model", "--prompt", "the ", *wrong, code=1)
    assert said.stdout == ""
    assert str(wrong[1]) in said.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "book.txt", "--out", "m"], "--target says the column to predict"),
        (
            ["fit", "book.txt", "--kind", "writer", "--out", "m", "--kernel", "boxcar"],
            "--kernel means nothing for a text",
        ),
        (["fit", "book.txt", "--kind", "writer", "--out", "m", "--set", "sise=3"], "did you mean size?"),
        (["fit", "book.txt", "--kind", "writer", "--out", "m", "--set", "size"], "--set takes NAME=VALUE"),
        (["fit", "none.txt", "--kind", "writer", "--out", "m"], "there is no file none.txt"),
        (["fit", "book.txt", "--kind", "writer", "--out", "m", "--set", "heads=3"], "heads must divide size"),
        (["write", "none", "--prompt", "a"], "none is no model folder"),
    ],
)
def test_a_mistake_is_one_clear_line(words, message, tmp_path):
    said = refused(*words)
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_verbs_of_other_models():
    run("fit", "book.txt", "--kind", "writer", "--out", "model", "--quiet", *SMALL)
    assert "a Writer goes on with a text instead of predicting" in refused("predict", "model", "book.txt")
    pd.DataFrame({"x": [1.0, 2, 3], "y": [1.0, 2, 3]}).to_csv("t.csv", index=False)
    run("fit", "t.csv", "--target", "y", "--out", "table")
    assert "only a Writer writes" in refused("write", "table", "--prompt", "a")
    assert "give a prompt" in refused("write", "model", "--prompt", "")


def test_two_processes_train_one_model():
    run("fit", "book.txt", "--kind", "writer", "--out", "alone", *SMALL, "--set=dropout=0")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "regard.cli",
    ]
    command += ["fit", "book.txt", "--kind", "writer", "--out", "both", *SMALL, "--set=dropout=0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    alone, both = regard.load("alone"), regard.load("both")
    for one, two in zip(alone.model_.parameters(), both.model_.parameters(), strict=True):
        assert_close(one, two, atol=1e-4, rtol=1e-3)
    assert not Path("both.run").exists()


def test_a_run_that_is_not_there_does_not_go_on_in_silence():
    said = run("fit", "book.txt", "--kind", "writer", "--out", "model", "--resume", *SMALL).stderr
    assert "there is no run in model.run to go on with: it begins anew" in said
    before = Path("model/config.json").read_bytes()
    said = refused("fit", "book.txt", "--kind", "writer", "--out", "model", "--resume", *SMALL)
    assert "no run in model.run to go on with, and model holds a model: without --resume another is learned" in said
    assert Path("model/config.json").read_bytes() == before


def test_a_run_in_the_folder_one_is_in_stands_beside_it(tmp_path):
    assert run_of(Path()) == tmp_path.with_name(f"{tmp_path.name}.run")
    assert run_of(Path("a/b")) == Path("a/b.run")
