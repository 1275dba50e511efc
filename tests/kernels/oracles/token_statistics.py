"""Statistics of rows of logits in plain Python loops."""

import math

NAN = math.nan


def row_statistics(logits, token_id, temperature):
    """(logprob, argmax, max_logprob, logsumexp, entropy) of one row."""
    if any(math.isnan(x) or x == math.inf for x in logits) or max(logits) == -math.inf:
        return NAN, -1, NAN, NAN, NAN
    scaled = [x / temperature for x in logits]
    peak = max(scaled)
    logsumexp = peak + math.log(math.fsum(math.exp(x - peak) for x in scaled))
    logprobs = [x - logsumexp for x in scaled]
    entropy = -math.fsum(math.exp(lp) * lp for lp in logprobs if lp > -math.inf)
    return logprobs[token_id], logits.index(max(logits)), peak - logsumexp, logsumexp, entropy


def segment_mean(values, offsets):
    return [
        math.fsum(values[begin:end]) / (end - begin) if end > begin else -math.inf
        for begin, end in zip(offsets, offsets[1:])  # noqa: B905, RUF007
    ]
