"""`AttentionRecord`: what `watch` recorded as a frame, a plot, tensors and rollout."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers.cases import rand
from torch.testing import assert_close

from regard.attend import Look
from regard.layers import AttentionRecord

BATCH, HEADS, LENGTH, MEMORY = 2, 3, 5, 7
TOKENS = [["the", "old", "$dog$", "is", "red"], ["a", "cat", "ran"]]


def weights(queries=LENGTH, keys=LENGTH, seed=0, batch=BATCH):
    return rand(batch, HEADS, queries, keys, seed=seed).softmax(-1)


def record_of(**entries):
    record = AttentionRecord()
    for name, given in entries.items():
        for one in given:
            record.add(name, one)
    return record


def test_it_is_a_dict_and_can_be_copied_and_pickled():
    record = record_of(a=[weights(), weights(seed=1)], b=[weights(seed=2)])
    for other in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert list(other) == ["a", "b"]
        assert_close(other.attentions(), record.attentions())


def test_attentions_are_in_the_order_of_running():
    record = AttentionRecord(["known"])
    runs = [("b", weights(seed=0)), ("known", weights(seed=1)), ("b", weights(seed=2)), ("b#2", weights(seed=3))]
    for name, one in runs:
        record.add(name, one)
    assert_close(record.attentions(), tuple(one for _, one in runs))
    assert_close(record.attentions("b"), (runs[0][1], runs[2][1], runs[3][1]))
    assert_close(record.attentions(["b#2", "k*"]), (runs[1][1], runs[3][1]))
    assert [x.shape for x in record_of(a=[rand(5, 7), rand(2, 5, 7), rand(2, 3, 4, 5, 7)]).attentions()] == [
        (1, 1, 5, 7),
        (2, 1, 5, 7),
        (6, 4, 5, 7),
    ]


def test_rollout_is_the_product_of_averaged_layers():
    first, second = weights(), weights(seed=1)
    first[0, :, 2] = 0.0  # a query that sees nothing
    steps = []
    for matrix in (first, second):
        step = 0.5 * matrix.mean(1) + 0.5 * torch.eye(LENGTH)
        steps.append(step / step.sum(-1, keepdim=True))
    result = record_of(a=[first], b=[second]).rollout()
    assert_close(result, (steps[1] @ steps[0]).double())
    assert_close(result.sum(-1), torch.ones(BATCH, LENGTH, dtype=result.dtype))
    assert_close(record_of(a=[first], cross=[weights(keys=MEMORY)]).rollout("a"), steps[0].double())
    assert record_of(a=[first.bfloat16()]).rollout().dtype == torch.float32


def test_the_frame_has_a_row_for_each_weight():
    matrix = weights()
    frame = record_of(a=[weights(seed=1), matrix]).to_frame(TOKENS)
    assert len(frame) == 2 * matrix.numel()
    row = frame[
        (frame.call == 1) & (frame["batch"] == 1) & (frame["head"] == 2) & (frame["query"] == 1) & (frame["key"] == 0)
    ]
    assert row[["layer", "query_token", "key_token", "weight"]].to_numpy().tolist() == [
        ["a", "cat", "a", float(matrix[1, 2, 1, 0])]
    ]
    padding = frame[(frame["batch"] == 1) & (frame["key"] > 2)]
    assert set(padding.key_token) == {""}
    assert record_of(a=[matrix]).to_frame().columns.tolist() == [
        *["layer", "call", "batch", "head", "query", "key", "weight"]
    ]


def test_the_frame_of_the_largest_weights_leaves_out_what_is_not_there():
    index = torch.tensor([[[[2, 0, -1], [1, -1, -1]]]])
    weight = torch.tensor([[[[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]]]])
    frame = record_of(a=[Look(index, weight)]).to_frame(["x", "y", "z"], layers="a")
    assert frame["key"].tolist() == [2, 0, 1]
    assert frame.key_token.tolist() == ["z", "x", "y"]
    assert frame.query_token.tolist() == ["y", "y", "z"]  # the last two positions
    assert_close(torch.tensor(frame.weight), torch.tensor([0.7, 0.3, 1.0]))


def test_keys_of_cross_attention_have_their_own_tokens():
    frame = record_of(cross=[weights(keys=MEMORY)]).to_frame(TOKENS, [list("abcdefg"), list("hijk")])
    assert frame.query_token[0] == "the"
    assert frame.key_token[:MEMORY].tolist() == list("abcdefg")


def test_plot_shows_one_head():
    matrix = weights()
    record = record_of(a=[weights(seed=1), matrix], b=[weights()])
    axes = record.plot("a", 2, TOKENS, batch=1, call=1)
    np.testing.assert_allclose(axes.images[0].get_array(), matrix[1, 2])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "cat", "ran", "", ""]
    assert axes.get_title(loc="left") == "a, head 2"
    axes = record.plot("b")
    assert axes.images[0].get_array().shape == (LENGTH, LENGTH)
    largest = record_of(a=[Look(torch.tensor([[[[2, -1], [0, 1]]]]), torch.tensor([[[[1.0, 0.0], [0.9, 0.1]]]]))])
    np.testing.assert_allclose(largest.plot("a").images[0].get_array(), [[0, 0, 1], [0.9, 0.1, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda record: record.attentions("abc"), ValueError, r"no recorded layer matches 'abc'; nearest .* 'a"),
        (lambda record: record.attentions(3), TypeError, r"names of modules or patterns of names, .* got 3"),
        (lambda record: record.attentions("largest"), ValueError, r"only the largest were recorded: leave out top"),
        (lambda record: record.attentions("none"), ValueError, r"nothing was recorded: call the model inside"),
        (lambda record: record.rollout(["a", "cross"]), ValueError, r"self-attention layers of one length.*2, 5, 7"),
        (lambda record: record.rollout("cross"), ValueError, r"rollout needs self-attention .*\[\[2, 5, 7\]\]"),
        (lambda record: record.rollout("number"), TypeError, r"keep what reduce returned for 'number'"),
        (lambda record: record.plot("*"), ValueError, r"plot draws one layer, but '\*' matches 'none', 'a', "),
        (lambda record: record.plot("a", 3), ValueError, r"'a' has 2 sequences and 3 heads, got batch=0 and head=3"),
        (lambda record: record.plot("a", call=1), ValueError, r"'a' ran 1 times: call must be below that, got 1"),
        (lambda record: record.plot("number"), TypeError, r"keep what reduce returned for 'number'"),
        (lambda record: record.to_frame("text", layers="a"), TypeError, r"list of tokens, got the text 'text'"),
        (
            lambda record: record.to_frame(TOKENS[0], layers="a"),
            ValueError,
            r"a list for each of the 2 sequences, got 1",
        ),
        (lambda record: record.to_frame([list("abcd")] * 2, layers="a"), ValueError, r"sequence, here 5, got 4"),
        (lambda record: record.to_frame([list("abcdef")] * 2, layers="a"), ValueError, r"here 5, got 6"),
        (lambda record: record.to_frame(None, TOKENS), ValueError, r"give tokens, those of the queries, too"),
    ],
)
def test_what_does_not_fit_raises(call, error, message):
    record = AttentionRecord(["none"])
    largest = Look(torch.zeros(BATCH, HEADS, LENGTH, 1, dtype=torch.long), torch.ones(BATCH, HEADS, LENGTH, 1))
    for name, one in {"a": weights(), "cross": weights(keys=MEMORY), "largest": largest, "number": 3.0}.items():
        record.add(name, one)
    with pytest.raises(error, match=message):
        call(record)


def test_circuitsvis_takes_the_weights_of_a_layer():
    from circuitsvis.attention import attention_patterns

    matrix = record_of(a=[weights(batch=1)]).attentions()[0][0].float()
    html = str(attention_patterns(tokens=TOKENS[0], attention=matrix))
    assert "AttentionPatterns" in html
    assert '"$dog$"' in html


def test_bertviz_takes_the_weights_of_all_layers():
    pytest.importorskip("IPython", reason="bertviz needs IPython")
    bertviz = pytest.importorskip("bertviz")
    record = record_of(a=[weights(batch=1)], b=[weights(batch=1, seed=1)])
    for view in (bertviz.head_view, bertviz.model_view):
        assert "$dog$" in view(record.attentions(), TOKENS[0], html_action="return").data
