"""A member that writes drafts of which it keeps a part."""

from __future__ import annotations

from collections.abc import Sequence

from .context import DecodingContext
from .drafts import Draft, write_draft


class Drafter:
    """Writes drafts whose keys and values stay staged until one is accepted.

    Args:
        context: the member's.
        whole_characters: see `write_draft`.
    """

    def __init__(self, context: DecodingContext, whole_characters: bool) -> None:
        self.context = context
        self._whole_characters = whole_characters

    def propose(self, length: int, pending: bytes = b"") -> Draft:
        """A draft of up to `length` ids behind the committed ones; all but the last are staged."""
        return write_draft(self.context, length, pending, self._whole_characters)

    def redraft(
        self, draft: Draft, count: int, ids: Sequence[int], length: int, pending: bytes = b""
    ) -> Draft:
        """Another draft of `length` ids in all, which begins with the first `count` of one that was
        just proposed and with `ids`; it takes its place."""
        context = self.context
        context.cache.keep_staged(count)
        logits = context.passes.feed(ids)
        context.passes.usage.drafted_tokens += len(ids)
        begun = [*draft.ids[:count], *ids]
        rows = [*draft.rows[: count + 1], *logits[:, : context.member.logits_size(logits)]]
        return write_draft(context, length, pending, self._whole_characters, begun, rows)

    def restage(self, draft: Draft, count: int) -> None:
        """Stages a draft again, of which the first `count` ids still are."""
        ids = draft.ids[:-1]
        self.context.cache.keep_staged(count)
        if count < len(ids):
            self.context.passes.feed(ids[count:], logits_to_keep=1)
            self.context.passes.usage.drafted_tokens += len(ids) - count

    def accept(self, draft: Draft, count: int, ids: Sequence[int], *, last: bool = False) -> None:
        """Commits the first `count` ids of the draft that is staged, and `ids` behind them, fed in
        one pass; with `last`, behind which nothing follows, they are not fed any more."""
        context = self.context
        fed = min(count, context.cache.staged)
        context.cache.commit(0, fed)
        context.ids += draft.ids[:fed]
        rest = [*draft.ids[fed:count], *ids]
        if last:
            context.ids += rest
        elif rest:
            context.append(rest)
        else:
            context.stand(draft.rows[fed])
