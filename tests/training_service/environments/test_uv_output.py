"""The cause of a failed command of uv, from its output."""

from __future__ import annotations

import pytest

from reconciler.training_service.environments.uv_output import is_unresolved, reason_of

NUMPY = """\
error: Failed to build `numpy==1.17.0`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)

         [stderr]
         {}

hint: Build failures usually indicate a problem with the package or the build environment
"""
ABI = """\
error: No solution found when resolving dependencies
  cause: Because numpy==1.17.0 has no wheels with a matching Python ABI tag (e.g., `cp311`) and you require \
numpy==1.17.0, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.11 (`cp311`), but we only found wheels for `numpy` (v1.17.0) with the following \
Python ABI tags: `cp310`, `cp36m`, `cp37m`
"""
NO_WHEEL = "numpy==1.17.0 has no wheel for Python 3.11, and could not be built: "


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (ABI, "numpy==1.17.0 has no wheel for Python 3.11, only for 3.6, 3.7, 3.10"),
        (NUMPY.format("error: command 'gcc' failed"), f"{NO_WHEEL}error: command 'gcc' failed"),
        (NUMPY.format("x.SetUpError: no BLAS"), f"{NO_WHEEL}x.SetUpError: no BLAS"),
        (NUMPY.format("no compiler"), f"{NO_WHEEL}no compiler"),
        (
            "a\nOSError: No space left on device (os error 28)\nb",
            "OSError: No space left on device (os error 28)",
        ),
        ("Using Python 3.11\nThe installer was killed by signal 9.", "The installer was killed by signal 9."),
        ("", "the installer failed"),
    ],
)
def test_cause_of_uv_is_said_in_one_line(output: str, reason: str) -> None:
    assert reason_of(output, "3.11") == reason
    assert is_unresolved(output) is (output == ABI)
