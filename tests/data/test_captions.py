"""Images with captions: what can be learned from, and batches of it."""

import numpy as np
import pandas as pd
import pytest

from regard.data.captions import CaptionBatches, as_images, captions_of, held_out, said_of, usable
from regard.data.text import UNKNOWN, restored, words


def test_every_caption_is_in_one_batch_with_its_image_and_captions_of_its_length():
    captions = [[number + 10] * (1 + number % 7) for number in range(53)]
    images = [number // 2 for number in range(53)]
    batches = CaptionBatches(images, captions, 8, (0, 3))
    assert len(batches) == 7
    seen = []
    for batch in batches:
        lengths = (batch.words != 0).sum(dim=1) - 2
        assert lengths.max() - lengths.min() <= 2
        for image, row, length in zip(batch.images.tolist(), batch.words.tolist(), lengths.tolist(), strict=True):
            assert row[0] == 1
            assert row[length + 1] == 2
            number = row[1] - 10
            assert row[1 : length + 1] == captions[number]
            assert image == images[number]
            seen.append(number)
    assert sorted(seen) == list(range(53))
    again = CaptionBatches(images, captions, 8, (0, 3))
    assert [batch.images.tolist() for batch in again] == [batch.images.tolist() for batch in batches]
    other = CaptionBatches(images, captions, 8, (0, 4))
    assert [batch.images.tolist() for batch in other] != [batch.images.tolist() for batch in batches]


def test_captions_are_one_or_several_and_what_has_none_is_left_out():
    names = ["a", "b", "c", "d", "e"]
    kept, said, left = captions_of(names, ["one ", ["two", " ", "three", float("nan")], [], None, float("nan")])
    assert kept == [0, 1]
    assert said == [["one"], ["two", "three"]]
    assert left == {"images": [2, 3, 4], "blank": 2}
    assert said_of(left, names) == "3 of 5 images without a caption ('c', 'd', 'e'), 2 blank captions beside others"
    assert (
        said_of({"images": [], "long": 3, "empty": 1, "unscored": 2}, [])
        == "2 images to validate with, whose captions have no word, 3 captions that are too long,"
        " 1 captions without a word"
    )
    assert said_of({"images": []}, []) == ""


def test_mistakes_of_form_are_named():
    with pytest.raises(ValueError, match=r"each image needs its captions, got 2 images and captions of 1"):
        captions_of(["a", "b"], ["one"])
    with pytest.raises(ValueError, match=r"there must be an image with a caption, got 2 images, none with one"):
        captions_of(["a", "b"], ["", []])
    for wrong in (3, [3], [None, 3]):
        with pytest.raises(TypeError, match=r"captions must be texts, got 3 for image 1"):
            captions_of(["a", "b"], ["one", wrong])
    with pytest.raises(TypeError, match=r"captions must be a list"):
        captions_of(["a"], "one")
    with pytest.raises(TypeError, match=r"images must be a list of paths or arrays, got str"):
        as_images("photo.jpg")
    with pytest.raises(ValueError, match=r"images must be several.*got one array of shape \[5, 7, 3\]"):
        as_images(np.zeros((5, 7, 3)))
    assert as_images(np.zeros((2, 5, 7, 3))).shape == (2, 5, 7, 3)
    assert as_images(np.array(["a.jpg", "b.jpg"])) == ["a.jpg", "b.jpg"]


def test_a_column_of_a_frame_is_taken_by_place():
    frame = pd.DataFrame({"image": ["a", "b", "c"], "said": ["one", "two", "three"]}).iloc[[2, 0]]
    assert as_images(frame["image"]) == ["c", "a"]
    assert captions_of(frame["image"], frame["said"])[:2] == ([0, 1], [["three"], ["one"]])


def test_a_part_is_held_out_by_a_seed():
    images, said = list(range(20)), [[str(number)] for number in range(20)]
    learned, held = held_out(images, said, 0.1, 3)
    assert len(held[0]) == 2
    assert sorted(learned[0] + held[0]) == images
    assert held[1] == [[str(number)] for number in held[0]]
    assert held_out(images, said, 0.1, 3)[1] == held
    assert held_out(images, said, 0.1, 4)[1] != held
    with pytest.raises(ValueError, match=r"1 of 1 images are held out to validate with, which leaves none"):
        held_out([1], [["one"]], 0.1, 0)


def test_captions_that_are_too_long_or_have_no_word_are_counted():
    tokenizer = words(["a b c d"], special=("<padding>", "<start>", "<end>"))
    places, coded, left = usable(tokenizer, [["a b", "a b c d"], ["!"], ["d x"]], 3)
    assert places == [0, 2]
    assert [tokenizer.decode(ids) for ids in coded] == ["a b", f"d {UNKNOWN}"]
    assert left == {"long": 1, "empty": 1}
    with pytest.raises(
        ValueError, match=r"no caption is left to learn from: of 2, 1 have more than 1 words.*1 have none"
    ):
        usable(tokenizer, [["a b"], ["?"]], 1)


def test_words_are_small_common_and_without_punctuation():
    tokenizer = words(["A dog's ball, a ball.", "The T-shirt's 2 balls!", "the -- dog's 'ball'"], 2, ("<padding>",))
    assert tokenizer.get_vocab(with_added_tokens=False) == {
        "<padding>": 0, UNKNOWN: 1, "ball": 2, "a": 3, "dog's": 4, "the": 5,
    }  # fmt: skip
    assert tokenizer.encode("The CAT'S ball...").tokens == ["the", UNKNOWN, "ball"]
    assert tokenizer.encode("<padding>").tokens == [UNKNOWN]
    assert restored(tokenizer.to_str()).encode("A ball").ids == [3, 2]
