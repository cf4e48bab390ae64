"""`regard fit translator`, `translate`, `evidence` and `info`, as they are typed."""

import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from helpers.talking import refused, run

import regard
from regard import Translator
from regard.data.samples import dates
from regard.estimators.translation import estimator as module
from regard.estimators.translation.command import translate

TINY = [
    *("--model=bahdanau", "--tokens=characters", "--size=8", "--hidden=12"),
    *("--epochs=2", "--batch-tokens=256", "--warm=5"),
]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources, targets = dates(60)
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in sources))
    (tmp_path / "out.txt").write_text("".join(f"{line}\n" for line in targets))
    lines = zip(sources, targets, strict=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines))


@pytest.fixture
def model(tiny):
    """A fitted model, and its folder `model`."""
    tiny("bahdanau").save("model")
    return tiny("bahdanau")


def test_one_file_and_two_files_give_the_same_model(tmp_path):
    run("fit", "translator", "pairs.tsv", "--out", "one", "--quiet", *TINY)
    result = run("fit", "translator", "--source", "in.txt", "--target", "out.txt", "--out", "two", *TINY)
    assert result.stdout == ""
    assert result.stderr.startswith("Translator (bahdanau) on 60 pairs of in.txt and out.txt, held-out BLEU ")
    assert not (tmp_path / "two.run").exists()
    sources = dates(5, seed=1)[0]
    one, two = regard.load("one"), regard.load("two")
    assert one.translate(sources) == two.translate(sources)
    assert (one.size, one.hidden, one.epochs, one.batch_tokens, one.warm, one.random_state) == (8, 12, 2, 256, 5, 0)


def test_validation_files_are_used():
    words = ["fit", "translator", "pairs.tsv", *TINY, "--epochs=1"]
    validation = ["--validation-source", "in.txt", "--validation-target", "out.txt"]
    run(*words, *validation, "--out", "one", "--quiet")
    run(*words, "--out", "other", "--quiet")
    one, other = (regard.load(name).model_.state_dict() for name in ("one", "other"))
    assert any((one[name] != other[name]).any() for name in one)  # the first was trained on all pairs
    missing = ["--validation-source", "no.txt", "--validation-target", "out.txt"]
    assert "there is no file no.txt" in refused(*words, *missing, "--out", "third")
    message = refused(*words, "--validation-source", "in.txt", "--out", "third")
    assert "--validation-source and --validation-target must be given together" in message


def test_translate_keeps_the_order_and_empty_lines(model, tmp_path):
    lines = ["4 July 1976", "", "the 1st of May, 2001"]
    result = run("translate", "model", "--beam", 2, "--alignments", "looks/a.jsonl", given="\n".join(lines) + "\n")
    assert result.stdout.split("\n") == [*model.translate(lines, beam=2), ""]
    alignments = [json.loads(line) for line in (tmp_path / "looks" / "a.jsonl").read_text().splitlines()]
    assert alignments[1] == {}
    assert alignments[0]["source"] == list("4 July 1976")
    assert len(alignments[0]["weight"]) == len(alignments[0]["target"])
    assert sum(alignments[2]["weight"][0]) == pytest.approx(1, abs=1e-2)
    assert run("translate", "model", given="").stdout == ""


@pytest.mark.slow
def test_evidence_and_info(model, tmp_path):
    (tmp_path / "three.txt").write_text("4 July 1976\n\n1 May 2001\n")
    run("evidence", "model", "three.txt", "--top", 2, "--out", "e.csv", "--plot", "e.png", "--row", 3)
    frame = pd.read_csv("e.csv")
    assert list(frame["sentence"].unique()) == [1, 3]  # the second is empty
    assert frame.groupby(["sentence", "place"]).size().eq(2).all()
    assert (tmp_path / "e.png").stat().st_size > 1000
    message = refused("evidence", "model", "three.txt", "--plot", "e.png", "--row", 2)
    assert "line 2 must not be empty" in message
    facts = run("info", "model").stdout
    assert "Translator, bahdanau" in facts
    assert "held-out BLEU" in facts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "in.txt", "--target", "short.txt"], "in.txt has 60 lines, short.txt has 2"),
        (["--source", "in.txt", "--target", "bad.txt"], "bad.txt is not UTF-8: line 2"),
        (["--source", "empty.txt", "--target", "out.txt"], "empty.txt is empty"),
        (["--source", "none.txt", "--target", "out.txt"], "there is no file none.txt"),
        (["in.txt"], "with a tab between them"),
        ([], "give one file with a tab"),
        (["pairs.tsv", "--source", "in.txt"], "give one file with a tab"),
        (["pairs.tsv", "--epoch=3"], "regard fit translator has no option --epoch; did you mean --epochs?"),
        (["pairs.tsv", "--context=3"], "it is an option of regard fit writer"),
        (["pairs.tsv", "--size=0"], "--size: size must be a positive whole number, got 0"),
    ],
    ids=str,
)
def test_invalid_input_raises_and_nothing_is_written(tmp_path, words, message):
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xfe\n")
    (tmp_path / "empty.txt").write_text("")
    assert message in refused("fit", "translator", "--out", "model", *TINY, *words)
    assert not (tmp_path / "model").exists()


def test_other_verbs_and_other_models_raise(model):
    assert "use regard translate" in refused("predict", "model", "in.txt")
    assert "needs a Writer, got a Translator" in refused("write", "model", "--prompt", "x")
    pd.DataFrame({"x": range(9), "y": range(9)}).to_csv("t.csv", index=False)
    regard.NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0]).save("rows")
    message = refused("translate", "rows", given="a")
    assert "regard translate needs a Translator, got a NadarayaWatson in rows" in message
    assert run("translate", "model", "--beam", 0, given="a", code=2)


@pytest.mark.slow
def test_invalid_sentences_raise(model, monkeypatch):
    message = refused("translate", "model", given="1" * 201)
    assert "sentence 1 has 201 tokens, more than the model's longest, 200" in message
    assert "stdin is not UTF-8: line 2 has the byte 0xff" in refused("translate", "model", given=b"a\n\xff")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ValueError, match="stdin is closed"):
        translate(Path("model"))


def test_errors_are_raised_before_the_work(model, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.estimators.translation.command.PART", 2)
    lines = "4 July 1976\n" * 3 + "1" * 201 + "\n"
    monkeypatch.setattr(Translator, "translate", lambda *given, **more: pytest.fail("too late"))
    assert "sentence 4 has 201 tokens" in refused("translate", "model", given=lines)
    (tmp_path / "folder").mkdir()
    message = refused("translate", "model", "--alignments", "folder", given="a\n")
    assert "--alignments must name a file, got the folder folder" in message
    message = refused("translate", "model", "--alignments", "in.txt/a.jsonl", given="a\n")
    assert "in.txt/a.jsonl cannot be written: " in message
    assert len(list(tmp_path.glob(".*"))) == 0  # the check leaves no file
    tiny("rnn").save("plain")
    message = refused("translate", "plain", "--alignments", "a.jsonl", given="a\n")
    assert "--alignments needs a model with attention, got an rnn" in message


def test_one_line_comes_out_for_each_line_of_input(model, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda self, lines, **_: [f"{line}\r\n!" for line in lines])
    assert run("translate", "model", given="a\nb\n").stdout == "a  !\nb  !\n"


def test_alignments_are_written_through_links_and_into_pipes_but_not_into_the_model(model, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "looks.jsonl")
    run("translate", "model", "--alignments", "link.jsonl", given="4 July 1976\n")
    assert (tmp_path / "link.jsonl").is_symlink()
    whole = (tmp_path / "looks.jsonl").read_text()
    assert json.loads(whole)["source"][0] == "4"
    os.mkfifo("pipe")
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True)
    run("translate", "model", "--alignments", "pipe", given="4 July 1976\n")
    assert reader.communicate(timeout=30)[0] == whole
    assert (tmp_path / "pipe").is_fifo()
    before = (tmp_path / "model" / "config.json").read_bytes()
    message = refused("translate", "model", "--alignments", "model/config.json", given="a\n")
    assert "--alignments must be outside the model folder, got model/config.json" in message
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_a_bleu_of_characters_is_labelled(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} one two\t{n}{n}\n" for n in range(40)))
    message = run("fit", "translator", "pairs.tsv", "--out", "short", *TINY, "--epochs=1").stderr
    assert ", of characters → short" in message
    assert ", of characters" in run("info", "short").stdout


@pytest.mark.slow
def test_ctrl_c_says_how_to_resume(monkeypatch):
    mean_loss, calls = module.mean_loss, []

    def stopped(*given):
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return mean_loss(*given)

    monkeypatch.setattr(module, "mean_loss", stopped)
    message = run("fit", "translator", "pairs.tsv", "--out", "model", *TINY, "--epochs=9", code=130).stderr
    assert message == "stopped: the checkpoint is in model.run; resume with the same command and --resume\n"
