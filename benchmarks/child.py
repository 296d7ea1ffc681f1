"""Runs one measurement in its own process, so that no earlier compilation or cache helps it.

The parent passes a package of benchmarks, the name of a function and its arguments; the child calls
the function and prints its result as a line of JSON. A failure affects only its own row.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# A child's environment if a first call is measured without any cache.
NO_CACHES = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "PYFUSER_DISABLE_CACHE": "1"}
FAILURES = (RuntimeError, subprocess.TimeoutExpired)

_RESULT = "result: "
# A step compiles for minutes at most; anything longer is a hang.
_TIMEOUT_SECONDS = 900


def run(package: str, what: str, *given: Any, **environment: str) -> Any:
    """The result of a function run in its own process; one of FAILURES if it fails.

    `package` accepts `--child FUNCTION ARGUMENT ...`, which it passes to `answer`.
    """
    command = [sys.executable, "-m", package, "--child", what]
    command += [json.dumps(each) for each in given]
    done = subprocess.run(
        command,
        env={**os.environ, "PYFUSER_STRICT": "1", **environment},
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT):
            return json.loads(line.removeprefix(_RESULT))
    lines = [f"exit code {done.returncode}", *done.stderr.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed)\w*: ", line)]
    raise RuntimeError((errors or lines)[-1][:200].replace("|", "/"))


def answer(functions: ModuleType, command: list[str]) -> int:
    """In the child: calls the function named by the command and prints its result."""
    what, *given = command
    result = getattr(functions, what)(*(json.loads(each) for each in given))
    print(f"{_RESULT}{json.dumps(result)}")
    return 0
