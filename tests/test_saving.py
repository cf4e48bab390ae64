"""Model folders: round trip, interrupted writes, errors for damaged folders."""

import os

import numpy as np
import pytest
import torch

from regard import NadarayaWatson, files, load, saving
from regard.data.samples import noisy_curve


def model(shift=0.0):
    x, y, _ = noisy_curve(7)
    return NadarayaWatson(bandwidth=1.0).fit(x[:, None], y + shift)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_read_as_it_was_written(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array([1, 2])}
    folder = saving.write_folder(tmp_path / "deep" / "model", {"name": "Größe"}, arrays)
    config, result = saving.read_folder(folder)
    assert config["name"] == "Größe"
    assert (result["a"] == arrays["a"]).all()
    assert (result["b"] == arrays["b"]).all()
    assert os.listdir(tmp_path / "deep") == ["model"]
    assert set(contents(folder)) == {"config.json", "model.safetensors"}


def test_arrays_without_dimensions_or_elements(tmp_path):
    arrays = {"number": np.float32(2.5), "none": np.zeros((0, 3)), "tensor": torch.tensor(1.5).numpy()}
    _, result = saving.read_folder(saving.write_folder(tmp_path / "model", {}, arrays))
    assert {name: array.shape for name, array in result.items()} == {"number": (), "none": (0, 3), "tensor": ()}
    assert result["number"] == 2.5


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        folder = saving.write_folder(tmp_path / "model", {}, {"a": np.arange(3)})
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


def test_the_working_directory_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match=r"\. cannot be replaced .*: choose a folder in it, such as model"):
        saving.write_folder(".", {}, {})
    assert list(tmp_path.iterdir()) == []


def test_types_that_numpy_does_not_have_stay_tensors(tmp_path):
    small, large = torch.tensor([[1.5, -2.0, 3.0]]).bfloat16().T, np.arange(5)
    large.flags.writeable = False
    saving.write_folder(tmp_path / "model", {}, {"small": small, "same": small, "large": large})
    _, result = saving.read_folder(tmp_path / "model")
    assert result["small"].dtype == torch.bfloat16
    assert torch.equal(result["small"], small)
    assert torch.equal(result["same"], small)
    assert result["large"].dtype == np.int64
    assert (result["large"] == large).all()


def test_a_model_replaces_another_several_times(tmp_path):
    for shift in (0.0, 5.0, -3.0):
        model(shift).save(tmp_path / "model")
        assert load(tmp_path / "model").predict([[1.0]]) == model(shift).predict([[1.0]])
        assert len(contents(tmp_path / "model")) == 2


@pytest.mark.parametrize("moment", ["arrays", "config", "rename"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_save_leaves_the_old_model_or_none(tmp_path, monkeypatch, moment, before):
    if before:
        model().save(tmp_path / "model")

    def die(*_, **__):
        raise KeyboardInterrupt

    replace = os.replace
    if moment == "arrays":
        monkeypatch.setattr(saving, "save_file", die)
    elif moment == "config":
        monkeypatch.setattr(saving.json, "dumps", die)
    else:
        target = "config.json" if before else "model"
        monkeypatch.setattr(files.os, "replace", lambda a, b: die() if b.name == target else replace(a, b))
    with pytest.raises(KeyboardInterrupt):
        model(5.0).save(tmp_path / "model")
    monkeypatch.undo()
    if before:
        assert load(tmp_path / "model").predict([[1.0]]) == model().predict([[1.0]])
    else:
        assert os.listdir(tmp_path) == []
    model(5.0).save(tmp_path / "model")
    assert load(tmp_path / "model").predict([[1.0]]) == model(5.0).predict([[1.0]])


def test_a_model_does_not_replace_other_files(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for place, said in (("full", "is not empty and holds no model"), ("full/mine.txt", "is a file")):
        with pytest.raises(FileExistsError, match=said):
            model().save(tmp_path / place)
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert load(model().save(tmp_path / "empty")).predict([[1.0]])


def test_damaged_folders_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"it has no config\.json"):
        load(tmp_path)
    folder = model().save(tmp_path / "model")
    whole = contents(folder)
    for name, text, said in (
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "has format None"),
        ("config.json", b'{"format": 9}', "has format 9; this version of regard reads format 1"),
        ("config.json", whole["config.json"].replace(b"NadarayaWatson", b"Oracle"), "of unknown kind, 'Oracle'"),
        ("config.json", whole["config.json"].replace(b"settings", b"lost"), "broken model, or one of another version"),
        ("config.json", whole["config.json"].replace(b"model.safe", b"../x.safe"), "names '../x.safetensors'"),
        ("model.safetensors", b"junk", "cannot be read"),
    ):
        (folder / name).write_bytes(text)
        with pytest.raises(ValueError, match=said):
            load(folder)
        (folder / name).write_bytes(whole[name])
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        load(folder)


def test_a_folder_of_another_library_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(FileExistsError, match="not empty and holds no model of regard"):
        saving.write_folder(tmp_path, {}, {})
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("texts", ["[1]", "null", '{"tokenizer": 3}', '{"tokenizer": "../secret.json"}'])
def test_wrong_names_of_texts_raise(tmp_path, texts):
    saving.write_folder(tmp_path / "model", {}, {}, {"tokenizer": "{}"})
    path = tmp_path / "model" / "config.json"
    path.write_text(path.read_text().replace('{\n    "tokenizer": "tokenizer.json"\n  }', texts))
    with pytest.raises(ValueError, match=r"for its (texts|tokenizer)"):
        saving.read_folder(tmp_path / "model")
