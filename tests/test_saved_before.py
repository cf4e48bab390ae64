"""Folders saved by the version before the rebuild still load, and give what they gave then.

`tests/saved_before/README.md` says how they were made.
"""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.talking import run

from regard import Captioner, Translator, Writer, load
from regard.compiled import dropout_hash
from regard.models.image_encoders import SmallResNet

FOLDER = Path(__file__).parent / "saved_before"
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))


def assert_near(found, recorded, tolerance=1e-5):
    np.testing.assert_allclose(found, recorded, rtol=tolerance, atol=tolerance)


def named(start):
    return [name for name in RECORDED if name.startswith(start)]


def test_all_folders_are_recorded():
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == set(RECORDED)


@pytest.mark.parametrize("name", [*named("kernel"), "local_lines", *named("bag_"), *named("flat"), "quadratic"])
def test_a_table_or_bags_get_the_predictions_and_the_evidence_of_then(name):
    recorded, model = RECORDED[name], load(FOLDER / name)
    given = pd.DataFrame(recorded["table"]) if "table" in recorded else np.array(recorded["bags"])
    found = model.predict(given)
    if isinstance(recorded["predictions"][0], str):
        assert found.tolist() == recorded["predictions"]
        assert_near(model.predict_proba(given), recorded["probabilities"])
    else:
        assert_near(found, recorded["predictions"])
    if "log_density" in recorded:
        assert_near(model.log_density(given), recorded["log_density"])
    evidence = model.evidence(given, top=len(recorded["index"][0]))
    assert_near(evidence.weight, recorded["weight"])
    assert evidence.index.tolist() == recorded["index"]


@pytest.mark.parametrize("name", named("by_command"))
def test_the_command_predicts_from_a_folder_that_it_wrote(name, tmp_path):
    recorded = RECORDED[name]
    (tmp_path / "rows.csv").write_text(recorded["file"], encoding="utf-8")
    found = pd.read_csv(io.StringIO(run("predict", FOLDER / name, tmp_path / "rows.csv").stdout))
    pd.testing.assert_frame_equal(found, pd.read_csv(io.StringIO(recorded["printed"])), rtol=1e-5)
    run("info", FOLDER / name)


@pytest.mark.parametrize("name", named("translator"))
def test_a_translator(name):
    recorded, model = RECORDED[name], load(FOLDER / name)
    model.verbose = False
    assert model.translate(recorded["sentences"], beam=3) == recorded["translations"]
    if "weight" in recorded:
        assert_near(model.evidence(recorded["sentences"][0], recorded["target"]).weight, recorded["weight"])


@pytest.mark.parametrize("name", named("captioner"))
def test_a_captioner(name):
    recorded = RECORDED[name]
    model = Captioner.load(FOLDER / name, encoder=SmallResNet(8, image_size=16))
    images = np.array(recorded["images"], dtype=np.uint8)
    assert model.caption(images, beam=2) == recorded["captions"]
    assert_near(model.evidence(images[0], recorded["caption"]).weight, recorded["weight"])


@pytest.mark.parametrize("name", named("writer"))
def test_a_writer(name):
    recorded, model = RECORDED[name], load(FOLDER / name)
    assert_near(model.perplexity(recorded["text"]), recorded["perplexity"])
    assert model.write(recorded["prompt"], length=12, temperature=0.01, seed=0) == recorded["written"]
    weight = model.evidence(recorded["evidence_of"], top=3).weight
    assert_near(np.sort(weight, axis=None), recorded["weight"])


def copied_run(name, folder):
    """A copy to resume, whose first validation is one that no new run would come to."""
    shutil.copytree(FOLDER / name, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["checkpoint"]["validations"][0] = "77.0"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def hashed_dropout(x, rate, training, inplace):
    """Dropout of activations as it was then: by a hash of the row, the column, and a seed from torch's generator."""
    if not training:
        return x
    rows = x.flatten(0, -2)  # [rows, columns]
    hashes = dropout_hash.row_hashes(dropout_hash.draw_seed(), torch.tensor(0), torch.arange(len(rows)).unsqueeze(-1))
    kept = dropout_hash.keep_mask(rate, *hashes, torch.arange(rows.shape[1]))
    return x * kept.view_as(x) * dropout_hash.keep_scale(rate)


def test_the_run_of_a_writer_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.nn.functional.dropout", hashed_dropout)
    recorded, folder = RECORDED["run_writer"], copied_run("run_writer", tmp_path / "run")
    writer = Writer(**recorded["settings"]).fit(recorded["fit_on"], checkpoint=folder, resume=True)
    assert len(writer.history_.validation) == 4
    assert writer.history_.validation[0] == 77
    assert_near(writer.perplexity(recorded["text"]), recorded["perplexity"], 1e-4)  # further steps may round otherwise


def test_the_run_of_a_translator_is_resumed(tmp_path):
    recorded, folder = RECORDED["run_translator"], copied_run("run_translator", tmp_path / "run")
    model = Translator(**recorded["settings"]).fit(*recorded["fit_on"], checkpoint=folder, resume=True)
    assert_near(model.history_.validation, [77, *recorded["history"][1:]])
    assert_near(model.evidence(recorded["source"], recorded["target"]).weight, recorded["weight"], 1e-4)
