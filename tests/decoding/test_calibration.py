"""Temperatures fitted to known texts."""

import json
import math

import pytest
import torch

from ensemble_decoding.calibration import Calibration, calibrate
from ensemble_decoding.teacher_forcing import checked_texts
from tests.decoding.members_for_tests import PROMPT, member
from tests.decoding.scripted_model import scripted
from tests.decoding.test_cosd_examples import learned, said_slowly, texts_of
from tests.decoding.test_cosd_rule import BYTES, one_token
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer

SHARES = {"Z": 10, "K": 6, "J": 3, "Q": 1}
# In this order no two stand in one token.
LETTERS = [letter for letter, count in SHARES.items() for _ in range(count)]


def scaled(one, factor):
    """The same member with all its logits multiplied."""

    def multiply(module, arguments, output):
        return output * factor

    one.model.lm_head.register_forward_hook(multiply)
    return one


def telling(factor=1.0):
    """It gives each letter the probability with which it stands in the texts, and has its logits
    multiplied."""
    script = {one_token(BYTES, letter): n * 0.9999 / 20 for letter, n in SHARES.items()}
    one = scripted(BYTES, [script], PROMPT, "telling")
    one.model.rows *= factor
    return one


def letters():
    return [(PROMPT, "".join(LETTERS[shift:] + LETTERS[:shift])) for shift in range(0, 20, 3)]


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.0, 1.7, 4.0])
def test_a_known_factor_is_recovered(factor):
    found = calibrate(telling(factor), letters(), progress=False)
    assert found.temperature == pytest.approx(factor, rel=0.02)
    assert found.tokens == 20 * len(letters())
    assert found.nll_after <= found.nll_before
    if factor != 1.0:
        assert found.nll_after < found.nll_before - 0.005
    entropy = -math.fsum(n / 20 * math.log(n / 20) for n in SHARES.values())
    assert found.nll_after == pytest.approx(entropy, abs=2e-3)
    # The likeliest letter has half of the probability, and is right half of the time.
    assert found.ece_after == pytest.approx(0, abs=0.01)
    assert (found.ece_before > 0.03) == (factor != 1.0)


def test_a_tiny_models_factor_is_recovered():
    texts = [(PROMPT, learned(member(seed=5), seed, PROMPT, 60)) for seed in range(3)]
    plain = calibrate(member(seed=5), texts, progress=False)
    assert 0.2 < plain.temperature < 0.6  # the texts were drawn at 0.25
    for factor in (0.5, 1.9):
        found = calibrate(scaled(member(seed=5), factor), texts, progress=False)
        assert found.temperature == pytest.approx(factor * plain.temperature, rel=0.02)
        assert found.nll_after == pytest.approx(plain.nll_after, rel=1e-4)
        assert found.nll_after < found.nll_before


def expected_error(confidences, right):
    """The mean over all tokens of the distance of their bin's confidence to its accuracy."""
    places = [min(int(c * 15), 14) for c in confidences]
    total = 0.0
    for place in set(places):
        group = [i for i, at in enumerate(places) if at == place]
        confidence = sum(confidences[i] for i in group) / len(group)
        accuracy = sum(right[i] for i in group) / len(group)
        total += len(group) * abs(confidence - accuracy)
    return total / len(places)


def test_errors_and_likelihoods_are_those_of_whole_passes():
    one = member("gemma3", seed=15)
    texts = texts_of([one])
    found = calibrate(one, texts, progress=False)
    for temperature, nll, error, bins in (
        (1.0, found.nll_before, found.ece_before, found.bins_before),
        (found.temperature, found.nll_after, found.ece_after, found.bins_after),
    ):
        confidences, right, losses = [], [], []
        for text in checked_texts(texts):
            data = text.continuation.encode()
            said = said_slowly(one, text.prompt, data, temperature)
            for begin, (end, best, confidence, own) in said.items():
                confidences.append(confidence)
                right.append(best == data[begin:end])
                losses.append(-math.log(own))
        assert found.tokens == len(losses) == sum(one.count for one in bins)
        assert nll == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert error == pytest.approx(expected_error(confidences, right), rel=1e-4)
        assert len(bins) == 15


def test_a_calibration_survives_a_file_and_is_drawn(tmp_path, capsys):
    found = calibrate(telling(2.0), letters())
    assert capsys.readouterr().err
    calibrate(telling(2.0), letters(), progress=False)
    assert capsys.readouterr() == ("", "")
    found.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == found
    assert "telling: temperature 1.99" in str(found)
    found.plot(tmp_path / "calibration.png")
    assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "calibration.png").stat().st_size > 5000
    with pytest.raises(ValueError, match=r"path must end in .png, .svg or .pdf, got .*gif"):
        found.plot(tmp_path / "calibration.gif")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "ensemble-decoding CoSD tree 1"}, "its format must be 'ensemble-decoding c"),
        ({"temperature": 0}, "temperature must be from 1e-37 to 1e.37, got 0"),
        ({"temperature": -1.5}, "temperature must be from 1e-37 to 1e.37, got -1.5"),
        ({"temperature": float("nan")}, "temperature must be finite, got nan"),
        ({"temperature": 10**400}, "temperature must be finite, got 1000"),
        ({"temperature": "1"}, "temperature must be a float, got '1'"),
        ({"tokens": 1.5}, "tokens must be an int, got 1.5"),
        ({"bins_after": [1]}, r"bins_after\[0\] must be a dict, got 1"),
        ({"more": 1}, "must have the fields of a Calibration, got 'more'"),
    ],
    ids=str,
)
def test_files_that_hold_no_calibration(tmp_path, change, message):
    path = tmp_path / "calibration.json"
    calibrate(telling(), letters()[:1], progress=False).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message) as caught:
        Calibration.load(path)
    assert str(caught.value).startswith("path must be a calibration that Calibration.save wrote")
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match="path must be a calibration"):
        Calibration.load(path)


def test_texts_of_which_nothing_can_be_read_are_an_error():
    one = member(tokenizer=byte_level_tokenizer(missing_bytes=b"q"), seed=1, name="holes")
    with pytest.raises(ValueError, match="texts must hold a token that holes can read, got none"):
        calibrate(one, [(PROMPT, "qqq")], progress=False)


def test_bfloat16_tells_the_same_to_three_digits():
    """Members are calibrated as they are loaded."""
    exact, half = member(seed=5), member(seed=5, dtype=torch.bfloat16)
    texts = [(PROMPT, learned(exact, 1, PROMPT, 60))]
    found = [calibrate(one, texts, progress=False) for one in (exact, half)]
    assert found[0].temperature == pytest.approx(found[1].temperature, rel=0.05)
