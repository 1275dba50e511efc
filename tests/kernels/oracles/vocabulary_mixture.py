"""Union vocabularies and their mixtures in plain Python, on dicts keyed by bytes.

Independent of the package: distributions are `dict[bytes | End, float]`, sums are `math.fsum`.
"""

import math
from dataclasses import dataclass, field

END = "end of text"


@dataclass
class Model:
    table: list  # bytes | None per id
    ends: list = field(default_factory=list)
    first_subtoken: dict = field(default_factory=dict)  # bytes -> id, for what the table lacks

    def key(self, token_id):
        if token_id in self.ends:
            return END
        return self.table[token_id] or None

    @property
    def keys(self):
        return {self.key(i) for i in range(len(self.table))} - {None}


def union(models):
    keys = set().union(*(m.keys for m in models))
    return sorted(k for k in keys if k is not END) + [END] * (END in keys)


def log_sum_exp(values):
    peak = max(values, default=-math.inf)
    if peak == -math.inf:
        return -math.inf
    return peak + math.log(math.fsum(math.exp(v - peak) for v in values))


def log_masses(model, logits, temperature):
    """(log-probability of each key, log of the normaliser), over the real columns."""
    real = [x / temperature for x in logits[: len(model.table)]]
    total = log_sum_exp(real)
    by_key = {}
    for token_id, value in enumerate(real):
        by_key.setdefault(model.key(token_id), []).append(value)
    return {k: log_sum_exp(v) - total for k, v in by_key.items()}, total


def mix_row(models, logits, weights, temperatures, mean):
    """(probability of each key, lost mass per model, fell back, mass kept) of one row."""
    weights = [w / math.fsum(weights) for w in weights]
    masses = [log_masses(*args)[0] for args in zip(models, logits, temperatures, strict=True)]
    lost = [math.exp(m.get(None, -math.inf)) for m in masses]
    voting = [(w, m) for w, m in zip(weights, masses, strict=True) if w > 0]
    keys = union(models)
    logs = {
        k: math.fsum(w * m[k] for w, m in voting)
        for k in keys
        if all(m.get(k, -math.inf) > -math.inf for _, m in voting)
    }
    mixed = {k: math.fsum(w * math.exp(m.get(k, -math.inf)) for w, m in voting) for k in keys}
    kept = math.fsum(mixed.values())
    fell_back = mean == "geometric" and not logs
    if mean == "geometric" and logs:
        total = log_sum_exp(list(logs.values()))
        mixed = {k: math.exp(logs[k] - total) if k in logs else 0.0 for k in keys}
    else:
        mixed = {k: v / kept if kept else math.nan for k, v in mixed.items()}
    return mixed, lost, fell_back, kept


def sharpen_row(probabilities, candidates, threshold):
    sharpened = dict(probabilities)
    for token in candidates:
        if token is not END and probabilities[token] > threshold:
            sharpened[token] = math.fsum(
                p for k, p in probabilities.items() if k is not END and k.startswith(token)
            )
    return sharpened


def text_scores(model, logits, temperature):
    masses, total = log_masses(model, logits, temperature)
    return {k: v + total for k, v in masses.items() if k is not None}


def top_k_row(models, logits, weights, temperatures, k):
    """(probability of each candidate, how near to a k-th score another one is) of one row."""
    weights = [w / math.fsum(weights) for w in weights]
    scores = [text_scores(*args) for args in zip(models, logits, temperatures, strict=True)]
    order = {key: i for i, key in enumerate(union(models))}
    candidates, gap = set(), math.inf
    for weight, own in zip(weights, scores, strict=True):
        if weight == 0:
            continue
        finite = [key for key, score in own.items() if score > -math.inf]
        ranked = sorted(finite, key=lambda key: (-own[key], order[key]))
        candidates.update(ranked[:k])
        if len(ranked) > k:
            away = [abs(own[key] - own[ranked[k - 1]]) for key in ranked]
            gap = min([gap, *(distance for distance in away if distance > 0)])
    mixed = dict.fromkeys(candidates, 0.0)
    for model, weight, own in zip(models, weights, scores, strict=True):
        if weight == 0:
            continue
        source = {c: _source(model, c) for c in candidates}
        sharers = list(source.values())
        taken = {c: own.get(s, -math.inf) - math.log(sharers.count(s)) for c, s in source.items()}
        total = log_sum_exp(list(taken.values()))
        for c, score in taken.items():
            mixed[c] += weight * math.exp(score - total) if total > -math.inf else math.nan
    return mixed, gap


def _source(model, candidate):
    """The key of the model's token whose score `candidate` takes, or None."""
    if candidate in model.keys:
        return candidate
    token_id = model.first_subtoken.get(candidate)
    return None if token_id is None else model.key(token_id)
