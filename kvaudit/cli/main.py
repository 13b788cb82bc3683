"""The door: checks that our packages are ours, runs a command, turns errors into words.

Exit status: 0 done or clean, 1 contaminated or at risk, 2 a usage or input error, 3 inconclusive or
a run that could not be finished. A crash of our own is 3 too: it says nothing about the target.
"""

import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from typer import Exit, TyperException

from kvaudit.cli.app import COMMANDS, build_app
from kvaudit.cli.terminal import say_error
from kvaudit.errors import ConfigError, KvauditError, ShadowedPackageError, UnknownNameError

USAGE_STATUS = 2
UNFINISHED_STATUS = 3
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141
_PACKAGES_BESIDE = ("engine", "probes", "reports")

app = build_app()


def main() -> NoReturn:
    """Run the command line of this process and end it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a replaced stream may know no such thing
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; raises nothing."""
    try:
        check_packages()
        status = app(args=list(arguments), prog_name="kvaudit", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except KvauditError as error:
        say_error(error.message, error.hint)
        return error.exit_status
    except TyperException as error:
        return _say_usage_error(error)
    except Exit as error:
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except (BrokenPipeError, SystemExit):  # Typer turns a broken pipe into an exit of its own
        _silence_stdout()
        return BROKEN_PIPE_STATUS
    except Exception:
        traceback.print_exc()
        say_error("kvaudit itself failed", "this is a bug: please report it with the lines above")
        return UNFINISHED_STATUS


def check_packages() -> None:
    """Raise ShadowedPackageError unless the packages beside `kvaudit` are ours.

    `engine`, `probes` and `reports` are generic names: another distribution, or a folder of the
    user's own, may stand in front of ours. Nothing of them is imported to find out.
    """
    home = Path(__file__).resolve().parents[2]
    for name in _PACKAGES_BESIDE:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parents[1] != home:
            raise ShadowedPackageError(
                f"the package `{name}` is not kvaudit's own: it lies at `{origin or 'nowhere'}`",
                hint="install kvaudit in an environment of its own (`pipx install kvaudit`) and"
                " run the `kvaudit` command",
            )


def _say_usage_error(error: TyperException) -> int:
    message = error.format_message()
    unknown = re.match(r"No such command '(.*)'", message)
    possibilities = getattr(error, "possibilities", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
    elif unknown is not None:
        named = UnknownNameError("command", unknown[1], (name for name, *_ in COMMANDS))
        say_error(named.message, named.hint)
    elif hasattr(error, "option_name") and message.startswith("No such option"):
        hint = f"did you mean `{possibilities[0]}`?" if possibilities else "see `--help`"
        say_error(f"there is no option `{error.option_name}`", hint)
    else:
        clear = ConfigError(message[:1].lower() + message[1:].rstrip("."))
        say_error(clear.message, "see `--help`")
    return USAGE_STATUS


def _silence_stdout() -> None:
    """Keep the interpreter from flushing into the broken pipe once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
