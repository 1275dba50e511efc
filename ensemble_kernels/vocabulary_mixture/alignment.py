"""`VocabularyAlignment`: one vocabulary for several models, keyed by the bytes of their tokens."""

from __future__ import annotations

import copy
import os
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from . import storage
from .column_maps import (
    AlignmentMaps,
    Union,
    ids_of_columns,
    own_columns,
    score_columns,
)
from .report import AlignmentReport, coverage
from .token_tables import TokenTable, check_id, fingerprint, read_tables


class VocabularyAlignment:
    """The union vocabulary of M models and the map from each of its columns to each model's ids.

    The columns are the distinct non-empty byte strings of all models, sorted by their bytes, and
    behind them, if any model has an end-of-text id, one column for that event, which every
    model's end-of-text ids share. Ids of one model with the same bytes share a column, and their
    probabilities add up. Keyed on bytes, tokens that are parts of a character stay distinct, and
    the byte alphabets of GPT-2, SentencePiece and tiktoken vocabularies meet.

    Make it with `from_token_bytes` or `load`. It does not change afterwards.
    """

    def __init__(self, tables: tuple[TokenTable, ...], union: Union | None = None) -> None:
        union = union or Union.of(tables)
        self._tables = tables
        self.tokens: tuple[bytes, ...] = union.tokens
        self.size: int = union.prefix_end.shape[0]
        ends = self.size > len(self.tokens)
        self.end_of_text: int | None = len(self.tokens) if ends else None
        self._columns = union.columns
        csr = [ids_of_columns(columns, self.size) for columns in self._columns]
        offsets, ids = map(list, zip(*csr, strict=True))
        own = [own_columns(o) for o in offsets]
        self._maps = {"cpu": AlignmentMaps(offsets, ids, union.prefix_end, own)}
        self._first_subtokens: tuple[dict[bytes, int], ...] | None = None
        self.models_without_subtokens: list[int] = [
            model
            for model, scores in enumerate(own)
            if bool((scores[: len(self.tokens)] < 0).any())
        ]
        self._highest_ids = [int(model_ids.max()) for model_ids in ids]
        self._unmapped_noted = False

    @classmethod
    def from_token_bytes(
        cls,
        token_bytes: Sequence[Sequence[bytes | None]],
        end_of_text_ids: Sequence[Sequence[int]] | None = None,
        canonical_ids: Sequence[Mapping[bytes, int]] | None = None,
    ) -> VocabularyAlignment:
        """Builds the union of the models' vocabularies.

        Args:
            token_bytes: per model the exact bytes of each token id; None (or b"") where an id is
                no text: a special token or a hole in the numbering. A table may be shorter than
                the model's logits, whose further columns are padding, or longer, and then the
                ids behind the logits count for nothing in the operators; `token_id` knows no
                logits and may still name them, so cut a table to the ids that a model can be fed.
            end_of_text_ids: per model the ids that end the text; they stand for that event, not
                for their bytes. None: no model has any.
            canonical_ids: per model, for byte strings that several ids have, the id that the
                tokenizer really emits (Gemma: b"a" is 335 as a byte, 236746 as a token).

        Raises:
            TypeError: a token that is neither bytes nor None, an id that is no int.
            ValueError: no model, a model without a single token, lists of unequal length, an id
                out of range or, in `canonical_ids`, of other bytes.

        Warns (once per call) if two vocabularies have next to nothing in common; see `report`.
        """
        alignment = cls(read_tables(token_bytes, end_of_text_ids, canonical_ids))
        alignment._warn_of_little_overlap()
        return alignment

    @classmethod
    def cached(
        cls,
        token_bytes: Sequence[Sequence[bytes | None]],
        end_of_text_ids: Sequence[Sequence[int]] | None = None,
        canonical_ids: Sequence[Mapping[bytes, int]] | None = None,
        *,
        folder: str | os.PathLike[str],
    ) -> VocabularyAlignment:
        """As `from_token_bytes`, in a fraction of the time where it was made before: what takes
        long is kept in `folder`, in a file named after the fingerprint. A file that is damaged
        is made anew; where it cannot be written, nothing is kept."""
        tables = read_tables(token_bytes, end_of_text_ids, canonical_ids)
        path = Path(folder) / f"{fingerprint(tables)}.union"
        union = storage.read_union(path, tables)
        if union is not None:
            return cls(tables, union)
        alignment = cls(tables)
        alignment._warn_of_little_overlap()
        storage.write_union(path, alignment._columns, alignment.maps("cpu").prefix_end)
        return alignment

    def _warn_of_little_overlap(self) -> None:
        apart = self.report().little_overlap()
        if apart:
            warnings.warn(
                f"little overlap between the vocabularies of models {apart}: their mixture is "
                f"hardly more than either alone; see VocabularyAlignment.report()",
                stacklevel=3,
            )

    @property
    def model_count(self) -> int:
        return len(self._tables)

    @property
    def table_sizes(self) -> list[int]:
        """Ids in each model's token table; logits from there on are padding."""
        return [columns.shape[0] for columns in self._columns]

    @property
    def fingerprint(self) -> str:
        """Of the token tables, end-of-text ids and canonical ids: equal where those are equal."""
        return fingerprint(self._tables)

    def check_tables(
        self,
        token_bytes: Sequence[Sequence[bytes | None]],
        end_of_text_ids: Sequence[Sequence[int]] | None = None,
        canonical_ids: Sequence[Mapping[bytes, int]] | None = None,
    ) -> None:
        """Raises ValueError unless `from_token_bytes` of these arguments would give this
        alignment: a map made for another tokenizer must not be used."""
        tables = read_tables(token_bytes, end_of_text_ids, canonical_ids)
        if len(tables) != self.model_count:
            raise ValueError(
                f"the alignment was made for {self.model_count} models, got {len(tables)}"
            )
        for model, (own, given) in enumerate(zip(self._tables, tables, strict=True)):
            if own.fingerprint != given.fingerprint:
                raise ValueError(
                    f"the alignment was made for another tokenizer of model {model}: expected the "
                    f"token table {own.fingerprint[:12]}, got {given.fingerprint[:12]}"
                )

    def column(self, token: bytes) -> int | None:
        """The column of a byte string, None if no model has it as a token."""
        column = bisect_left(self.tokens, token)
        found = column < len(self.tokens) and self.tokens[column] == token
        return column if found else None

    def token_id(self, model: int, column: int) -> int | None:
        """The id by which `model` is fed `column`: the canonical one if it was given, else the
        lowest; None where the model lacks it. Raises ValueError for one out of range."""
        check_id("model", model, self.model_count)
        check_id("column", column, self.size)
        if column != self.end_of_text:
            canonical = self._tables[model].canonical_ids.get(self.tokens[column])
            if canonical is not None:
                return canonical
        maps = self._maps["cpu"]
        start, end = maps.offsets[model][column : column + 2].tolist()
        return int(maps.ids[model][start]) if start < end else None

    def model_columns(self, model: int) -> Tensor:
        """`[n]` int64, ascending: the columns of the text tokens that `model` has."""
        check_id("model", model, self.model_count)
        has = self._maps["cpu"].offsets[model].diff() > 0
        return has[: len(self.tokens)].nonzero().squeeze(1)

    def missing_tokens(self, model: int) -> list[bytes]:
        """The text tokens of the union that `model` lacks, in the order of their columns."""
        present = set(self.model_columns(model).tolist())
        return [token for column, token in enumerate(self.tokens) if column not in present]

    def with_first_subtokens(self, tables: Sequence[Mapping[bytes, int]]) -> VocabularyAlignment:
        """This alignment with what `top_k_union` needs to know of the tokenizers.

        Args:
            tables: per model, for the tokens that it lacks (`missing_tokens`), the id of the
                first token of their encoding by its tokenizer. A token that is not listed has no
                encoding there and gets no probability; entries for tokens that the model has are
                ignored.

        Raises:
            TypeError: an id that is no int.
            ValueError: not one table per model, a token that is not in the union, or an id that
                is no text token of the model.
        """
        if len(tables) != self.model_count:
            raise ValueError(
                f"tables must have {self.model_count} entries, one per model, got {len(tables)}"
            )
        extended = copy.copy(self)
        maps = self._maps["cpu"]
        scores = [
            score_columns(f"tables[{model}]", table, self.tokens, columns, offsets)
            for model, (table, columns, offsets) in enumerate(
                zip(tables, self._columns, maps.offsets, strict=True)
            )
        ]
        extended._maps = {"cpu": maps._replace(score_columns=scores)}
        extended._first_subtokens = tuple(dict(table) for table in tables)
        extended.models_without_subtokens = []
        return extended

    def maps(self, device: torch.device | str) -> AlignmentMaps:
        """The map's tensors on `device`. They are copied there once, on the first call, which
        should not be one inside a compiled graph: what is made there is not kept."""
        name = str(device)
        if name in self._maps:
            return self._maps[name]
        maps = self._maps["cpu"].to(torch.device(device))
        if not torch.compiler.is_compiling():
            self._maps[name] = maps
        return maps

    def note_unmapped(self, widths: Sequence[int]) -> None:
        """Warns, the first time, of tokens whose ids lie behind the logits of their model."""
        if self._unmapped_noted:
            return
        parts = [
            f"{int((self._maps['cpu'].ids[model] >= width).sum())} tokens of model {model} have "
            f"ids up to {highest}, but its logits have {width} columns"
            for model, (highest, width) in enumerate(zip(self._highest_ids, widths, strict=True))
            if highest >= width
        ]
        if parts:
            self._unmapped_noted = True
            warnings.warn(f"{'; '.join(parts)}: these tokens count for nothing", stacklevel=4)

    def report(self, distributions: Sequence[Tensor] | None = None) -> AlignmentReport:
        """How much of each model's vocabulary each other model has.

        Args:
            distributions: per model sample probabilities `[V_m]` or `[R, V_m]`, for the coverage
                by mass: two vocabularies that share few tokens may share those that matter.
        """
        return coverage(self._maps["cpu"], distributions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the token tables (and first sub-tokens) to `path` as JSON."""
        storage.write(path, self._tables, self._first_subtokens)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> VocabularyAlignment:
        """Reads what `save` wrote. Raises ValueError for any other file, or a damaged one.

        Whether it fits the tokenizers in use is a question for `check_tables`.
        """
        tables, first_subtokens = storage.read(path)
        alignment = cls(tables)
        return (
            alignment
            if first_subtokens is None
            else alignment.with_first_subtokens(first_subtokens)
        )

    def __repr__(self) -> str:
        return f"VocabularyAlignment({self.model_count} models, {self.size} columns)"
