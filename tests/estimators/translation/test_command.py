"""`regard fit --kind translator`, `translate`, `evidence` and `info`, as they are typed."""

import json
import os
import subprocess

import pandas as pd
import pytest
from helpers.talking import refused, run

import regard
from regard import Translator
from regard.data.samples import dates

SMALL = [
    f"--set={setting}"
    for setting in (
        "model=bahdanau",
        "tokens=characters",
        "size=8",
        "hidden=12",
        "epochs=2",
        "batch_tokens=256",
        "warm=5",
    )
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
def model():
    run("fit", "pairs.tsv", "--kind", "translator", "--out", "model", "--quiet", *SMALL)
    return regard.load("model")


def test_fit_from_one_file_and_from_two_is_the_same(tmp_path, model):
    said = run("fit", "--kind", "translator", "--source", "in.txt", "--target", "out.txt", "--out", "other", *SMALL)
    assert said.stdout == ""
    assert said.stderr.startswith("Translator (bahdanau) on 60 pairs of in.txt and out.txt, held-out BLEU ")
    assert not (tmp_path / "other.run").exists()
    asked = dates(5, seed=1)[0]
    assert regard.load("other").translate(asked) == model.translate(asked)


def test_files_to_validate_with_are_used():
    said = ["fit", "--kind", "translator", "--source", "in.txt", "--target", "out.txt", *SMALL]
    run(*said, "--validation", "in.txt", "out.txt", "--out", "one", "--quiet")
    run(*said, "--out", "other", "--quiet")
    one, other = (regard.load(name).model_.state_dict() for name in ("one", "other"))
    assert any((one[name] != other[name]).any() for name in one)  # the one has learned from all pairs
    assert "there is no file no.txt" in refused(*said, "--validation", "no.txt", "out.txt", "--out", "third")


def test_translate_keeps_the_order_and_the_empty_lines(model, tmp_path):
    asked = ["4 July 1976", "", "the 1st of May, 2001"]
    found = run("translate", "model", "--beam", 2, "--alignments", "looks/a.jsonl", given="\n".join(asked) + "\n")
    lines = found.stdout.split("\n")
    assert lines == [*model.translate(asked, beam=2), ""]
    looks = [json.loads(line) for line in (tmp_path / "looks" / "a.jsonl").read_text().splitlines()]
    assert looks[1] == {}
    assert looks[0]["source"] == list("4 July 1976")
    assert len(looks[0]["weight"]) == len(looks[0]["target"])
    assert sum(looks[2]["weight"][0]) == pytest.approx(1, abs=1e-2)
    assert run("translate", "model", given="").stdout == ""


def test_evidence_and_info(model, tmp_path):
    (tmp_path / "two.txt").write_text("4 July 1976\n1 May 2001\n")
    run("evidence", "model", "two.txt", "--top", 2, "--out", "e.csv", "--plot", "e.png", "--row", 2)
    frame = pd.read_csv("e.csv")
    assert list(frame["sentence"].unique()) == [1, 2]
    assert frame.groupby(["sentence", "place"]).size().eq(2).all()
    assert (tmp_path / "e.png").stat().st_size > 1000
    told = run("info", "model").stdout
    assert "Translator, bahdanau" in told
    assert "held-out BLEU" in told


def test_bad_input_is_named_and_nothing_is_written(tmp_path):
    fit = ["fit", "--kind", "translator", "--out", "model", *SMALL]
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xfe\n")
    (tmp_path / "empty.txt").write_text("")
    assert "in.txt has 60 lines, short.txt has 2" in refused(*fit, "--source", "in.txt", "--target", "short.txt")
    assert "bad.txt is not UTF-8: line 2" in refused(*fit, "--source", "in.txt", "--target", "bad.txt")
    assert "empty.txt is empty" in refused(*fit, "--source", "empty.txt", "--target", "out.txt")
    assert "there is no file none.txt" in refused(*fit, "--source", "none.txt", "--target", "out.txt")
    assert "with a tab between them" in refused(*fit, "in.txt")
    assert "one file with a tab" in refused(*fit)
    assert "one file with a tab" in refused(*fit, "pairs.tsv", "--source", "in.txt")
    assert "--bag means nothing for pairs of sentences" in refused(*fit, "pairs.tsv", "--bag", "x")
    assert "did you mean epochs" in refused("fit", "pairs.tsv", "--kind", "translator", "--out", "m", "--set=epoch=3")
    assert not (tmp_path / "model").exists()


def test_another_kind_of_model_does_not_translate(model, tmp_path):
    assert "a Translator translates instead of predicting" in refused("predict", "model", "in.txt")
    assert "only a Writer writes" in refused("write", "model", "--prompt", "x")
    assert "sentence 1 has 201 tokens, more than the model's longest, 200" in refused(
        "translate", "model", given="1" * 201
    )
    assert "stdin is not UTF-8: line 2 has the byte 0xff" in refused("translate", "model", given=b"a\n\xff")
    pd.DataFrame({"x": range(9), "y": range(9)}).to_csv("t.csv", index=False)
    run("fit", "t.csv", "--target", "y", "--out", "rows", "--quiet")
    assert "rows holds a NadarayaWatson, and only a Translator translates" in refused("translate", "rows", given="a")
    assert "there is no file to learn from (rows)" in refused("fit", "--target", "y", "--out", "rows")
    assert run("translate", "model", "--beam", 0, given="a", code=2)


def test_what_cannot_be_done_is_known_before_the_work(model, tmp_path, monkeypatch):
    long = "4 July 1976\n" * 3 + "1" * 201 + "\n"
    monkeypatch.setattr("regard.estimators.translation.command.AT_ONCE", 2)
    assert "sentence 4 has 201 tokens" in refused("translate", "model", given=long)
    (tmp_path / "folder").mkdir()
    assert "folder is a folder" in refused("translate", "model", "--alignments", "folder", given="a\n")
    run("fit", "pairs.tsv", "--kind", "translator", "--out", "plain", "--quiet", *SMALL, "--set=model=rnn")
    assert "without attention looks at nothing" in refused("translate", "plain", "--alignments", "a.jsonl", given="a\n")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ValueError, match="it is closed"):
        app_translate("model")


def test_one_line_comes_out_for_each_that_goes_in(model, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda self, lines, **_: [f"{line}\r\n!" for line in lines])
    assert run("translate", "model", given="a\nb\n").stdout == "a  !\nb  !\n"


def test_alignments_go_where_they_were_sent(model, tmp_path):
    """Into what a link names, into a pipe, and never into the model."""
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
    said = refused("translate", "model", "--alignments", "model/config.json", given="a\n")
    assert "model/config.json is in the model's own folder" in said
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_a_place_that_cannot_be_written_is_known_before_the_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda *given, **more: pytest.fail("too late"))
    said = refused("translate", "model", "--alignments", "in.txt/a.jsonl", given="a\n")
    assert "in.txt/a.jsonl cannot be written: " in said
    assert ".tried" not in said
    assert not list(tmp_path.glob(".*tried"))


def test_the_bleu_of_characters_is_called_so(model, tmp_path):
    assert "held-out BLEU" in run("info", "model").stdout
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} one two\t{n}{n}\n" for n in range(40)))
    said = run("fit", "pairs.tsv", "--kind", "translator", "--out", "short", *SMALL).stderr
    assert ", of characters → short" in said
    assert ", of characters" in run("info", "short").stdout


def app_translate(folder):
    from pathlib import Path

    from regard.cli.app import translate

    translate(Path(folder))


def test_evidence_passes_over_empty_lines(model, tmp_path):
    (tmp_path / "three.txt").write_text("4 July 1976\n\n1 May 2001\n")
    run("evidence", "model", "three.txt", "--out", "e.csv")
    assert list(pd.read_csv("e.csv")["sentence"].unique()) == [1, 3]
    assert "line 2 is empty" in refused("evidence", "model", "three.txt", "--plot", "e.png", "--row", 2)


def test_who_stops_is_told_how_it_goes_on(monkeypatch):
    from regard.estimators.translation import estimator as module

    loss, calls = module.mean_loss, []

    def stopped(*given):
        calls.append(1)
        if len(calls) > 30:
            raise KeyboardInterrupt
        return loss(*given)

    monkeypatch.setattr(module, "mean_loss", stopped)
    said = run("fit", "pairs.tsv", "--kind", "translator", "--out", "model", *SMALL, "--set=epochs=9", code=130).stderr
    assert said == "stopped: the run is kept in model.run; the same command with --resume goes on with it\n"
