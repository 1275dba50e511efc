"""A llama of two layers with a byte-level tokenizer, written as a quantized GGUF file."""

from pathlib import Path

import gguf
import numpy as np

HIDDEN, INTERMEDIATE, HEADS, LAYERS = 64, 96, 2, 2
MERGED = ["Ġc", "at", "20", "24", "2024"]  # the digits merge unless they are split before


def byte_alphabet() -> list[str]:
    """How byte-level tokenizers spell the 256 bytes (the GPT-2 paper's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def write_tiny_gguf(path: Path, *, architecture: str = "llama", pre: str = "smollm") -> np.ndarray:
    """Write the file; return what its first layer's `mlp.up_proj` holds, in float32."""
    tokens = ["<end>", "<start>", *byte_alphabet(), *MERGED]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))  # 3: control, 1: normal
    writer.add_token_merges(["Ġ c", "a t", "2 0", "2 4", "20 24"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    up = _add_tensors(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return up


def _add_tensors(writer: gguf.GGUFWriter, vocabulary: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def add(name: str, rows: int, columns: int) -> np.ndarray:
        blocks = gguf.quantize(rng.normal(size=(rows, columns)).astype(np.float32), q8)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=q8)
        return gguf.dequantize(blocks, q8)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))

    add("token_embd", vocabulary, HIDDEN)
    add_norm("output_norm")
    ups = []
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add_norm(f"{block}.ffn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{part}", HIDDEN, HIDDEN)
        add(f"{block}.ffn_gate", INTERMEDIATE, HIDDEN)
        ups.append(add(f"{block}.ffn_up", INTERMEDIATE, HIDDEN))
        add(f"{block}.ffn_down", HIDDEN, INTERMEDIATE)
    return ups[0]
