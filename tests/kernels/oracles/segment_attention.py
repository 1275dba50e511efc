"""Segment attention in plain Python loops, from its definition alone."""

import math


def visible_slots(row, offsets, prefix, window, first):
    """The slots that `row` sees, given the offsets and lengths of its batch row."""
    segment = next((s for s in range(len(offsets) - 1) if offsets[s] <= row < offsets[s + 1]), None)
    if segment is None:
        return []
    start = offsets[segment]
    positions = {slot: slot for slot in range(prefix)}
    positions |= {prefix + other: prefix + other - start for other in range(start, row + 1)}
    here = prefix + row - start
    return [
        slot
        for slot, position in positions.items()
        if slot >= first and (window is None or here - position < window)
    ]


def attention_row(query, keys, values, scale, softcap):
    """One query against the keys and values that it sees: out, and the natural LSE."""
    if not keys:
        return [0.0] * len(query), -math.inf
    scores = [scale * math.fsum(map(float.__mul__, query, key)) for key in keys]
    if softcap is not None:
        scores = [softcap * math.tanh(score / softcap) for score in scores]
    peak = max(scores)
    weights = [math.exp(score - peak) for score in scores]
    total = math.fsum(weights)
    out = [math.fsum(map(float.__mul__, weights, column)) / total for column in zip(*values)]  # noqa: B905
    return out, peak + math.log(total)


def segment_attention(query, key, value, offsets, prefixes, starts, scale, window, softcap):
    """Nested lists `[B, H, T, D]` in, `out` and `lse` as nested lists back."""
    outs, lses = [], []
    for b, heads in enumerate(query):
        group = len(heads) // len(key[b])
        outs.append([])
        lses.append([])
        for h, rows in enumerate(heads):
            results = []
            for t, row in enumerate(rows):
                slots = visible_slots(t, offsets[b], prefixes[b], window, starts[b])
                keys = [key[b][h // group][slot] for slot in slots]
                values = [value[b][h // group][slot] for slot in slots]
                results.append(attention_row(row, keys, values, scale, softcap))
            outs[b].append([out for out, _ in results])
            lses[b].append([lse for _, lse in results])
    return outs, lses
