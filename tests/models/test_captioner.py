"""The caption decoder against a plain loop over words, and hard attention against the sum over all draws."""

import itertools

import pytest
import torch
from helpers.cases import rand
from torch.testing import assert_close

import regard
from regard.decoding import beam, greedy
from regard.models.captioner import CaptionConfig, CaptionDecoder, HardAttention, HardCaptionDecoder, Regions
from regard.ops import attentive_rnn
from regard.weighing import HardSample, softmax
from regard.weighing import hard as hard_weighing

VOCABULARY, CHANNELS, SIZE, HIDDEN, ATTENTION = 13, 3, 5, 7, 11


def make_decoder(kind=CaptionDecoder, *hard, **settings):
    torch.manual_seed(1)
    decoder = kind(VOCABULARY, CHANNELS, CaptionConfig(SIZE, HIDDEN, ATTENTION, **settings), *hard).double()
    with torch.no_grad():  # parameters that start at zero would hide a mistake
        decoder.read.bias.normal_()
        decoder.score.weight.mul_(3)
        decoder.centre.normal_()
        decoder.width.uniform_(0.5, 2)
    return decoder


def case(batch=2, cells=4, words=6):
    torch.manual_seed(2)
    grid = torch.randn(batch, cells, CHANNELS, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(1, VOCABULARY, (batch, words))
    for row in range(1, batch):
        tokens[row, max(2, words - 2 * row) :] = 0
    return grid, tokens


def plain_loop(decoder, grid, words, cells=None):
    """Logits and weights, word by word; with cells [batch, m], the context of each word is that cell alone."""
    grid = (grid - decoder.centre) / decoder.width
    mean = grid.mean(dim=1)
    hidden = torch.tanh(mean @ decoder.first_hidden.weight.T + decoder.first_hidden.bias)
    cell = torch.tanh(mean @ decoder.first_cell.weight.T + decoder.first_cell.bias)
    logits, all_weights = [], []
    if decoder.place is not None:
        grid = grid + decoder.place
    for t in range(words.shape[1]):
        weights = regard.look(hidden.unsqueeze(1), grid, score=decoder.score)  # [batch, 1, cells]
        attended = regard.attend(hidden.unsqueeze(1), grid, grid, score=decoder.score, engine="dense").squeeze(1)
        if cells is not None:
            attended = grid[torch.arange(len(grid)), cells[:, t]]
        context = torch.sigmoid(hidden @ decoder.gate.weight.T + decoder.gate.bias) * attended
        vector = decoder.embedding.weight[words[:, t]]
        hidden, cell = decoder.cell(torch.cat([vector, context], dim=1), (hidden, cell))
        total = vector + hidden @ decoder.from_state.weight.T + decoder.from_state.bias
        row = torch.tanh(total + context @ decoder.from_context.weight.T)
        logits.append(row @ decoder.read.weight.T + decoder.read.bias)
        all_weights.append(weights.squeeze(1))
    return torch.stack(logits, dim=1), torch.stack(all_weights, dim=1)


def plain_loss(decoder, grid, words, spread=0.0):
    """Word by word and cell by cell."""
    logits, weights = plain_loop(decoder, grid, words[:, :-1])
    total, count = 0.0, 0
    for b in range(len(words)):
        totals = torch.zeros_like(weights[b, 0])
        for t in range(words.shape[1] - 1):
            if words[b, t + 1] != 0:
                total = total - logits[b, t].log_softmax(0)[words[b, t + 1]]
                totals = totals + weights[b, t]
                count += 1
        total = total + spread * ((1 - totals) ** 2).sum()
    return total / count


def gradients(loss, grid, decoder):
    return torch.autograd.grad(loss, [grid, *decoder.parameters()])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 6), (3, 17, 5), (1, 1, 2)])
def test_it_equals_a_plain_loop_in_value_and_gradient(tied, positions, shape):
    decoder, (grid, words) = make_decoder(tied=tied, shape=(1, shape[1]) if positions else None), case(*shape)
    logits, weights = plain_loop(decoder, grid, words[:, :-1])
    assert_close(decoder(grid, words[:, :-1]), logits)
    assert_close(decoder.look(grid, words[:, :-1]), weights)
    assert_close(
        decoder.logits(torch.ones(2, SIZE).double()),
        torch.ones(2, SIZE).double() @ decoder.output_weights[0].T + decoder.output_weights[1],
    )
    ours, plain = decoder.loss(grid, words, spread=0.7), plain_loss(decoder, grid, words, spread=0.7)
    assert_close(ours, plain)
    for found, right in zip(gradients(ours, grid, decoder), gradients(plain, grid, decoder), strict=True):
        assert_close(found, right)


def test_the_torch_fallback_equals_the_loops(monkeypatch):
    decoder, (grid, words) = make_decoder(), case(3, 17, 5)
    first = gradients(decoder.loss(grid, words, spread=0.7), grid, decoder)
    monkeypatch.setattr(attentive_rnn, "fusible", lambda *_: False)
    for found, right in zip(gradients(decoder.loss(grid, words, spread=0.7), grid, decoder), first, strict=True):
        assert_close(found, right)


def test_grids_are_scaled_by_those_of_fit_scaling():
    decoder, grid = make_decoder(), 5 + 3 * torch.randn(41, 7, CHANNELS).double()
    decoder.fit_scaling(grid)
    scaled = decoder._prepare_grid(grid)[1].flatten(0, 1)
    assert_close(scaled.mean(dim=0), torch.zeros(CHANNELS).double())
    assert_close(scaled.std(dim=0, correction=0), torch.ones(CHANNELS).double())
    decoder.fit_scaling(grid[:1, :1])
    assert decoder._prepare_grid(grid)[1].isfinite().all()  # one cell does not vary
    assert {"centre", "width"} <= set(decoder.state_dict())


def test_smoothing_equals_torchs():
    decoder, (grid, words) = make_decoder(), case()
    logits, real = decoder(grid, words[:, :-1]), words[:, 1:] != 0
    plain = torch.nn.functional.cross_entropy(logits[real], words[:, 1:][real], label_smoothing=0.3)
    assert_close(decoder.loss(grid, words, smoothing=0.3), plain)


def test_padding_changes_nothing():
    decoder, (grid, words) = make_decoder(), case()
    alone = decoder(grid[1:], words[1:, :3])
    assert_close(decoder(grid, words)[1:, :3], alone)
    longer = torch.cat([words, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    assert_close(decoder.loss(grid, longer, spread=0.7), decoder.loss(grid, words, spread=0.7))


@pytest.mark.parametrize("kind", [CaptionDecoder, HardCaptionDecoder])
def test_decoding_step_by_step_equals_one_pass(kind):
    decoder, (grid, _) = make_decoder(kind).eval(), case(3, 17)
    for found in (
        [best[0] for best in beam(decoder.step, decoder.begin(grid), torch.ones(3).long(), end=2, length=7, size=4)],
        greedy(decoder.step, decoder.begin(grid), torch.ones(3).long(), end=2, length=7),
    ):
        for row, hypothesis in enumerate(found):
            words = torch.tensor([[1, *hypothesis.tokens, *([2] if hypothesis.finished else [])]])
            log_p = decoder(grid[row : row + 1], words[:, :-1]).log_softmax(dim=2).gather(2, words[:, 1:, None])
            assert_close(float(log_p.detach().sum()), hypothesis.log_probability, atol=1e-6, rtol=0)


def test_a_beam_stores_the_grid_of_an_image_once():
    decoder, (grid, _) = make_decoder().eval(), case(3, 17)
    state = decoder.begin(grid)
    state = regard.decoding.select(state, torch.tensor([0, 0, 2, 2]), of=3)
    assert state[2].key.shape == (2, 17, ATTENTION)
    mixed = regard.decoding.select(state, torch.tensor([2, 0, 3]), of=4)
    last = torch.tensor([1, 2, 3])
    found = decoder.step(mixed, last)[1]
    for row, image in enumerate((2, 0, 2)):
        assert_close(decoder.step(decoder.begin(grid[image : image + 1]), last[row : row + 1])[1][0], found[row])


@pytest.mark.parametrize("weigh", [softmax, hard_weighing])
@pytest.mark.parametrize("index", [[0, 1], [1, 0], [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 1], [1]])
def test_each_row_attends_to_the_grid_of_its_image(index, weigh):
    key, value, weight = rand(2, 5, 7, seed=1), rand(2, 5, 3, seed=2), rand(7, seed=3)
    query = rand(len(index), 7, seed=4)
    attended = Regions(key, value, torch.tensor(index)).attend(query, weight, weigh)
    for row, image in enumerate(index):
        scores = torch.tanh(query[row] + key[image]) @ weight
        assert_close(attended[row], weigh(scores.unsqueeze(0))[0] @ value[image])


def make_hard(**settings):
    return make_decoder(HardCaptionDecoder, HardAttention(**{"expected": 0.0, "entropy": 0.0} | settings))


def test_hard_attention_takes_the_most_probable_cell_in_eval_mode():
    decoder, (grid, words) = make_hard().eval(), case(3, 17)
    output = decoder.rows(grid, words)
    assert_close(output.chosen_cells, output.weights.argmax(dim=2))
    logits, weights = plain_loop(decoder, grid, words, output.chosen_cells)
    assert_close(decoder.logits(output.rows), logits)
    assert_close(output.weights, weights)


def test_hard_attention_draws_cells_by_their_weights():
    decoder, (grid, words) = make_hard().train(), case(1, 4)
    many = grid.detach().expand(4000, -1, -1), words.expand(4000, -1)
    output = decoder.rows(*many)
    frequency = torch.bincount(output.chosen_cells[:, 0], minlength=4) / 4000
    error = (output.weights[0, 0] * (1 - output.weights[0, 0]) / 4000).sqrt()
    assert ((frequency - output.weights[0, 0]).abs() < 4 * error).all()
    assert (frequency > 0).all()
    decoder.eval()
    draw = HardSample(torch.Generator().manual_seed(0))
    state = decoder.begin(grid.detach())
    written = {float(decoder.step(state, words[:1, 0], weigh=draw)[1][0, 0].detach()) for _ in range(30)}
    assert 1 < len(written) <= 4


def test_the_expected_cell_equals_soft_attention():
    decoder, (grid, words) = make_hard(expected=1.0, entropy=0.0).train(), case()
    soft = make_decoder()
    shared = soft.state_dict().keys()
    soft.load_state_dict({name: value for name, value in decoder.state_dict().items() if name in shared})
    ours, plain = decoder.loss(grid, words, spread=0.7), soft.loss(grid, words, spread=0.7)
    assert_close(ours, plain)
    for found, right in zip(gradients(ours, grid, decoder), gradients(plain, grid, soft), strict=True):
        assert_close(found, right)


def exact_gradient(decoder, grid, words, entropy):
    """The gradient of E log p(y | s) and of the expected entropies, summed over all possible draws."""
    count = words.shape[1] - 1
    bound = 0.0
    for cells in itertools.product(range(grid.shape[1]), repeat=count):
        logits, weights = plain_loop(decoder, grid, words[:, :-1], torch.tensor([cells]))
        log_p = logits[0].log_softmax(1).gather(1, words[0, 1:, None]).sum()
        probability = weights[0].gather(1, torch.tensor(cells)[:, None]).prod()
        entropies = -(weights * weights.log()).sum()
        bound = bound + probability * log_p + entropy * probability.detach() * entropies
    return torch.cat([one.flatten() for one in gradients(-bound / count, grid, decoder)])


def estimates(decoder, grid, words, times, baseline):
    """The gradient estimates of repeated calls, `[times, parameters]`."""
    found = []
    for _ in range(times):
        decoder.baseline.fill_(baseline)
        found.append(torch.cat([one.flatten() for one in gradients(decoder.loss(grid, words), grid, decoder)]))
    return torch.stack(found)


@pytest.mark.slow
def test_the_estimate_is_unbiased_and_the_baseline_lowers_its_variance():
    grid, words = case(1, 4, 4)  # 4 cells and 3 words: 64 possible draws
    decoder = make_hard(entropy=0.1, samples=100).train()
    right = exact_gradient(decoder, grid, words, entropy=0.1)
    log_p = -float(decoder.loss(grid, words).detach())
    variance = {}
    for baseline in (0.0, log_p):
        found = estimates(decoder, grid, words, 100, baseline)  # 10,000 draws
        error = found.std(dim=0) / 100**0.5
        # Within 4.5 standard errors, of which 1 in 150,000 is outside by chance; some 470 numbers are compared.
        assert ((found.mean(dim=0) - right).abs() <= 4.5 * error + 1e-12).all()
        variance[baseline] = float(found.var(dim=0).sum())
    assert float(error.norm()) < 0.02 * float(right.norm()), "the test is too blunt"
    assert variance[log_p] < 0.5 * variance[0.0]


@pytest.mark.slow
def test_without_the_gradient_of_the_draws_the_estimate_is_biased():
    grid, words = case(1, 4, 4)
    without = make_hard(reward=0.0, samples=25).train()
    right = exact_gradient(without, grid, words, entropy=0.0)
    found = estimates(without, grid, words, 100, -2.0)
    assert ((found.mean(dim=0) - right).abs() > 6 * found.std(dim=0) / 10).any()


def test_entropy_counts_words_and_not_padding():
    decoder, (grid, words) = make_hard(expected=1.0, entropy=0.7).train(), case()
    ours = gradients(decoder.loss(grid, words), grid, decoder)
    real = words[:, 1:] != 0
    assert not real.all()
    soft = make_hard(expected=1.0, entropy=0.0).train()
    soft.load_state_dict(decoder.state_dict())
    plain_loss = soft.loss(grid, words)
    weights = soft.rows(grid, words[:, :-1]).weights
    entropy = -(weights * weights.log()).sum(dim=2)[real].sum() / real.sum()
    for found, right in zip(ours, gradients(plain_loss - 0.7 * entropy, grid, soft), strict=True):
        assert_close(found, right)


def test_the_baseline_moves_by_a_tenth_and_is_saved():
    decoder, (grid, words) = make_hard().train(), case()
    before = float(decoder.baseline)
    assert before == pytest.approx(-torch.tensor(float(VOCABULARY)).log().item())
    loss = float(decoder.loss(grid, words).detach())
    assert float(decoder.baseline) == pytest.approx(0.9 * before - 0.1 * loss)
    assert "baseline" in decoder.state_dict()
    decoder.eval().loss(grid, words)
    assert float(decoder.baseline) == pytest.approx(0.9 * before - 0.1 * loss)


def test_the_first_training_steps_are_soft_and_evaluation_counts_none():
    decoder, (grid, words) = make_hard(soft_steps=2).train(), case()
    for expected in (True, True, False):
        decoder.eval().loss(grid, words)
        assert not decoder._draw(words).expected.any()
        assert decoder.train()._draw(words).expected.tolist() == [expected] * 2
        decoder.loss(grid, words)
    assert int(decoder.steps) == 3


def test_padding_gives_hard_attention_no_gradient():
    decoder, (grid, words) = make_hard(entropy=0.3).eval(), case()
    longer = torch.cat([words, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    for found, right in zip(
        gradients(decoder.loss(grid, longer, spread=0.7), grid, decoder),
        gradients(decoder.loss(grid, words, spread=0.7), grid, decoder),
        strict=True,
    ):
        assert_close(found, right)


def test_rewards_sum_the_words_from_the_draw_on():
    decoder = make_hard()
    decoder.baseline.fill_(-1.0)
    log_probs = torch.tensor([[-3.0, -2.0, -1.5], [-4.0, 0.0, 0.0]]).double()
    real = torch.tensor([[True, True, True], [True, False, False]])
    assert_close(decoder._advantage(log_probs, real), torch.tensor([[-3.5, -1.5, -0.5], [-3.0, 0.0, 0.0]]).double())


def test_invalid_inputs_raise():
    decoder, (grid, words) = make_decoder(), case()
    with pytest.raises(ValueError, match=r"a grid must be \[batch, cells, 3\], with at least a cell, got \[2, 3, 4\]"):
        decoder(grid.mT, words)
    with pytest.raises(ValueError, match=r"each caption needs its grid, got 1 grids and 2 captions"):
        decoder(grid[:1], words)
    with pytest.raises(ValueError, match=r"tokens must be at least 0 and below 13, the vocabulary, got 99"):
        decoder(grid, words.masked_fill(words > 0, 99))
    with pytest.raises(ValueError, match=r"captions must be \[batch, m \+ 1\].*got shape \[2, 1\]"):
        decoder.loss(grid, words[:, :1])
    with pytest.raises(ValueError, match=r"a word after its start"):
        decoder.loss(grid, words * 0)
    with pytest.raises(ValueError, match=r"the decoder was made for 5 cells, got 4"):
        make_decoder(shape=(5, 1))(grid, words)
    with pytest.raises(ValueError, match=r"hidden must be a positive whole number, got 0"):
        CaptionConfig(hidden=0)
    with pytest.raises(ValueError, match=r"samples must be a positive whole number, got 0"):
        make_hard(samples=0)
