"""Grids from the disk are those of the encoder, and each is computed once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_cases import Counting, Loud, computed, counted, photos
from numpy.testing import assert_array_equal
from torch import nn
from torch.testing import assert_close

from regard.data import encoder_cache as module
from regard.data.encoder_cache import features, fingerprint


@pytest.mark.usefixtures("small_files")
def test_they_are_what_the_encoder_gives_and_are_computed_once(tmp_path, encoder):
    images = photos(tmp_path, 7)
    found, seen = counted(encoder, images, encoder, tmp_path / "cache", half=False)
    expected = computed(encoder, images)
    assert (seen, len(found), found.shape) == (7, 7, (7, 5, 3, 3))
    assert_close(found[:], expected)
    assert_close(found[[5, 0, 5]], expected[[5, 0, 5]])
    assert_close(found[torch.tensor([1, 6])], expected[[1, 6]])
    assert_close(found[3:5], expected[3:5])
    assert_close(found[-1], expected[-1])
    assert found[[]].shape == (0, 5, 3, 3)
    assert found[:].dtype == torch.float32
    again, seen = counted(encoder, images[::-1], encoder, str(tmp_path / "cache"), half=False)
    assert seen == 0
    assert_close(again[:], expected.flip(0))


@pytest.mark.usefixtures("small_files")
def test_the_bar_counts_all_that_is_new(tmp_path, encoder, monkeypatch):
    noted, old = [], photos(tmp_path, 2)
    features(old, encoder, tmp_path / "cache")
    monkeypatch.setattr(module.ProgressBar, "note", lambda bar, done, **numbers: noted.append((done, [*numbers])))
    features([*old, *photos(tmp_path, 7, seed=1)], encoder, tmp_path / "cache")
    assert noted == [(done, ["images/s"]) for done in (2, 3, 5, 6, 7)]


@pytest.mark.usefixtures("small_files")
def test_what_is_new_is_added_and_what_is_there_twice_is_computed_once(tmp_path, encoder):
    old, new = photos(tmp_path, 4), photos(tmp_path, 5, seed=1)
    copy = tmp_path / "copy.png"
    copy.write_bytes(new[0].read_bytes())
    features(old, encoder, tmp_path / "cache", half=False)
    mixed = [new[0], old[2], *new[1:], copy, old[0]]
    found, seen = counted(encoder, mixed, encoder, tmp_path / "cache", half=False)
    assert seen == 5
    assert_close(found[:], computed(encoder, mixed))


def test_the_image_counts_not_its_name(tmp_path, encoder):
    one, other = photos(tmp_path, 2)
    features([one, other], encoder, tmp_path / "cache", half=False)
    one.write_bytes(photos(tmp_path, 1, seed=5)[0].read_bytes())
    found, seen = counted(encoder, [one, other], encoder, tmp_path / "cache", half=False)
    assert seen == 1
    assert_close(found[:], computed(encoder, [one, other]))


def test_arrays_have_their_grids_too(tmp_path, encoder):
    drawn = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
    found, seen = counted(encoder, drawn, encoder, tmp_path, half=False)
    assert seen == 3
    assert_close(found[:], computed(encoder, drawn))
    assert counted(encoder, list(drawn[1:]), encoder, tmp_path, half=False)[1] == 0


def test_half_is_near_and_half_as_large(tmp_path, encoder):
    images = photos(tmp_path, 6)
    half, whole = (features(images, encoder, tmp_path / "cache", half=way) for way in (True, False))
    assert half[:].dtype == torch.float32
    assert_close(half[:], whole[:], rtol=2**-11, atol=2**-24)
    assert not torch.equal(half[:], whole[:])
    assert half.parts[0].dtype == torch.float16
    sizes = sorted(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors"))
    assert len(sizes) == 2
    assert abs(sizes[1] - sizes[0] - 6 * 5 * 3 * 3 * 2) <= 16  # but for the digits of the sizes in the files


def test_another_encoder_has_other_grids(tmp_path, encoder):
    images = photos(tmp_path, 3)
    features(images, encoder, tmp_path / "cache")
    with torch.no_grad():
        next(encoder.parameters())[0, 0, 0, 0] += 1
    found, seen = counted(encoder, images, encoder, tmp_path / "cache", half=False)
    assert seen == 3
    assert_close(found[:], computed(encoder, images))


def test_all_that_a_grid_depends_on_is_in_the_fingerprint(encoder):
    class Brighter(Counting):
        def prepare(self, images):
            return super().prepare(images) + 0.25

    same, brighter, larger = Counting(), Brighter(), Counting(image_size=32)
    for other in (same, brighter, larger):
        other.load_state_dict(encoder.state_dict())
    brighter.__class__.__qualname__ = "Counting"
    assert fingerprint(same, True) == fingerprint(encoder, True)
    prints = {fingerprint(one, half) for one in (encoder, brighter, larger) for half in (True, False)}
    assert len(prints) == 6


def test_so_are_the_shapes_and_types_of_weights():
    prints = set()
    for zeros in (torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, dtype=torch.float64)):
        made = Loud(1.0)
        made.register_buffer("table", zeros)
        prints.add(fingerprint(made, True))
    assert len(prints) == 3


def test_the_encoder_keeps_no_graph(tmp_path, encoder):
    modes = []
    encoder.register_forward_hook(lambda *_: modes.append((torch.is_grad_enabled(), encoder.training)))
    images = photos(tmp_path, 3)
    for _ in range(2):  # computed, and compared
        features(images, encoder.train(), tmp_path / "cache")
        assert modes[-1] == (False, False)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")
def test_files_are_mapped_into_memory(tmp_path, encoder):
    found = features(photos(tmp_path, 2), encoder, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    assert str(file) in Path("/proc/self/maps").read_text()
    before = found[:].clone()
    found[:].zero_()  # what is given out is the caller's own
    assert_array_equal(found[:], before)


def test_modes_are_left_as_they_were(tmp_path, encoder):
    encoder.train()
    encoder.blocks[1].eval()
    modes = [part.training for part in encoder.modules()]
    before = encoder.blocks[1].running_mean.clone()
    features(photos(tmp_path, 2), encoder, tmp_path / "cache")
    assert [part.training for part in encoder.modules()] == modes
    assert_close(encoder.blocks[1].running_mean, before, rtol=0, atol=0)


class Bent(nn.Module):
    """A layer, and what bends its numbers, which has no weights; `gain` is not said by its `repr`."""

    image_size = 24

    def __init__(self, layer, bend, gain=1.0):
        super().__init__()
        self.layer, self.bend, self.gain = layer, bend, gain

    def prepare(self, images):
        return torch.as_tensor(images).movedim(-1, 1).float() / 255

    def forward(self, image):
        return self.gain * self.bend(self.layer(image))


def test_encoders_of_other_parts_never_share_grids(tmp_path):
    layer = nn.Conv2d(3, 5, 3, 2)
    first, second = Bent(layer, nn.ReLU()), Bent(layer, nn.Hardswish())
    images = photos(tmp_path, 5)
    features(images[:2], first, tmp_path / "kept", half=False)
    features(images[2:], second, tmp_path / "kept", half=False)
    assert_close(features(images, first, tmp_path / "kept", half=False)[:], computed(first, images))


def test_a_grid_of_each_file_is_made_anew(tmp_path):
    layer, images = nn.Conv2d(3, 5, 3, 2), photos(tmp_path, 5)
    features(images[:2], Bent(layer, nn.ReLU()), tmp_path / "kept")
    features(images[2:], Bent(layer, nn.ReLU(), gain=2.0), tmp_path / "kept")
    with pytest.raises(ValueError, match="holds grids that the encoder does not make now"):
        features(images, Bent(layer, nn.ReLU()), tmp_path / "kept")
