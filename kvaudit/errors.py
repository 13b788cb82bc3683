"""Every error that a user can meet, one tree.

The message says what is wrong, with backticks round names and values and no full stop; the hint
says how to mend it. `exit_status` is what the command line returns: 2 for bad input, 3 where the
run itself could not be finished.
"""

import difflib
from collections.abc import Iterable


class KvauditError(Exception):
    """Anything that a user, a file or a server got wrong.

    Attributes:
        message: What is wrong.
        hint: How to mend it; None if there is nothing to say.
        exit_status: The status of the process that ends on this error.
    """

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(KvauditError):
    """A flag, a key of `kvaudit.toml` or a value that does not fit."""


class UnknownNameError(ConfigError):
    """A name that stands in no catalogue; the hint suggests the nearest one that does."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(names)}"
        super().__init__(f"there is no {what} `{name}`", hint=hint)
        self.nearest = near[0] if near else None


class NotBuiltError(ConfigError):
    """A documented flag or command whose part does not exist in this version."""


class MissingExtraError(KvauditError):
    """The command needs packages that the base install leaves out; the hint says how to add them.

    Args:
        what: What needs them, in a few words.
        package: Name of the first one that is missing.
    """

    def __init__(self, what: str, package: str) -> None:
        super().__init__(
            f"{what} needs `{package}`, which the base install leaves out",
            hint="install the engine extra from your clone or wheel:"
            " pip install -c constraints.txt '.[engine]'",
        )


class ShadowedPackageError(KvauditError):
    """Another distribution's `engine`, `probes` or `reports` hides ours."""


class RunFolderError(KvauditError):
    """The folder is no run, is damaged, or can't be written."""


class NewerRunError(RunFolderError):
    """The run was written by a newer version of kvaudit."""


class StorageError(KvauditError):
    """The disk is full or refuses the write; what was recorded before stays."""

    exit_status = 3


class TargetError(KvauditError):
    """The target can't be reached, or does not answer as such a target must."""

    exit_status = 3


class EngineError(KvauditError):
    """The reference engine can't be built from this configuration."""


class StartRefusedError(EngineError):
    """The start check found that the deployment would not be safe."""

    exit_status = 3


class SanitizerError(EngineError):
    """The engine was about to misuse a page, and was stopped before a wrong token left."""

    exit_status = 3
