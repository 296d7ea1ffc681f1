"""`python -m pyfuser`: a script's stages and counters, the op table, the environment.

Reads the arguments and calls one function of `pyfuser.command_line`; the exit status is 0 on
success, 1 if the command found something wrong, 2 for invalid arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .command_line import compatibility, doctor, operations, profile, show, tune
from .nvfuser_direct_version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; `arguments` default to those of the process.  Returns its status."""
    parsed = _parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Splits the arguments at `--`: everything after it belongs to the script, options too.

    argparse would look for our own options in it if one of them comes between it and the script.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    parsed = _parser().parse_args(given[:end])
    if parsed.command in ("show", "profile", "tune"):
        parsed.arguments += given[end + 1 :]
    elif given[end:]:
        _parser().error(f"expected no arguments after --, got {' '.join(given[end + 1 :])}")
    return parsed


def _run(parsed: argparse.Namespace) -> int:
    if parsed.command == "show":
        return show.run(parsed.file, parsed.device, parsed.stage, parsed.arguments, parsed.after)
    if parsed.command == "profile":
        return profile.run(parsed.file, parsed.device, parsed.arguments)
    if parsed.command == "tune":
        return tune.run(parsed.file, parsed.device, parsed.seconds, parsed.show, parsed.arguments)
    if parsed.command == "ops":
        return operations.run(parsed.markdown)
    if parsed.command == "compat":
        return compatibility.run(parsed.markdown)
    return doctor.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pyfuser", description="A fusion compiler for PyTorch.")
    parser.add_argument("--version", action="version", version=f"pyfuser {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shown = commands.add_parser(
        "show", help="print the compiler's stages for a script's fusions and graphs"
    )
    shown.add_argument(
        "file", metavar="FILE.py", help="a script that defines fusions or calls torch.compile"
    )
    shown.add_argument("arguments", nargs="*", help="the script's arguments; its options after --")
    shown.add_argument("--device", default="cpu", help="cpu (the default), or sm_80, sm_90, ...")
    shown.add_argument("--stage", choices=show.STAGES, help="one stage only")
    shown.add_argument("--after", metavar="PASS", help="print the result of one pass")
    counted = commands.add_parser(
        "profile", help="count what a script's kernels do to a GPU's memory, without a GPU"
    )
    counted.add_argument("file", metavar="FILE.py", help="a script, as for show")
    counted.add_argument(
        "arguments", nargs="*", help="the script's arguments; its options after --"
    )
    counted.add_argument("--device", default="sm_90", help="sm_80, sm_90 (the default), ...")
    tuned = commands.add_parser(
        "tune", help="measure other schedules for a script's kernels, and keep what is faster"
    )
    tuned.add_argument("file", metavar="FILE.py", nargs="?", help="a script, as for show")
    tuned.add_argument("arguments", nargs="*", help="the script's arguments; its options after --")
    tuned.add_argument("--device", default="cpu", help="cpu (the default); sm_80, sm_90, ...")
    tuned.add_argument("--seconds", type=float, default=60.0, help="how long it may measure (60)")
    tuned.add_argument("--show", action="store_true", help="print what is stored instead")
    table = commands.add_parser("ops", help="print what a fusion can be made of")
    table.add_argument("--markdown", action="store_true", help="as Markdown")
    names = commands.add_parser("compat", help="print nvFuser's interface, and what works here")
    names.add_argument("--markdown", action="store_true", help="as docs/compat.md")
    commands.add_parser("doctor", help="print versions, the processor, the cache, what is missing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
