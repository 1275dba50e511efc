"""Reports of one noisy machine compared: how often that looks like a change."""

import random

from tests.test_report_history import decoding_report, verdict


def test_noise_is_seldom_a_change_and_a_change_is_found():
    chance = random.Random(0)

    def report(ours, noise):
        times = [[s * chance.gauss(1, noise) for _ in range(3)] for s in (ours, 4.0)]
        return decoding_report(*times)

    for noise in (0.02, 0.05, 0.1):
        pairs = [(report(10, noise), report(10, noise)) for _ in range(500)]
        assert sum(verdict(*pair) == "slower" for pair in pairs) <= 10
    pairs = [(report(10, 0.02), report(11, 0.02)) for _ in range(200)]
    assert sum(verdict(*pair) == "slower" for pair in pairs) >= 170
