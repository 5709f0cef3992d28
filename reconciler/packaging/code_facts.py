"""Facts about a trainer's Python code, independent of any job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct

FOLDERS = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
"""The variables with a run's folders, gs:// URIs (`CustomJobSpec.baseOutputDirectory`)."""
DATA = ("AIP_DATA_FORMAT", "AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI")
"""The variables with a pipeline's data (`TrainingPipeline.inputDataConfig`)."""
OF_TRIALS = ("CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_TAG")
"""The variables of trials."""
VARIABLES = frozenset((*FOLDERS, *DATA, *OF_TRIALS, "TF_CONFIG", "CLUSTER_SPEC"))
"""The variables that a service sets only for some jobs."""
REPORT = "report_hyperparameter_tuning_metric"
"""The function of cloudml-hypertune that reports a trial's metric."""
URI = "gs://"


class UseKind(Enum):
    """Kind of a use."""

    NEEDS = auto()
    """Fails without the variable `name`, and says nowhere what to do then."""
    NAMES_VARIABLE = auto()
    """Has the name of the variable."""
    OPENS = auto()
    """Takes a path of `name` for one of files: "gs://", a variable or "--option" is what it begins with."""
    COMPARES_WITH_MASTER = auto()
    JOB_DIR_IN_TF_CONFIG = auto()
    REPORTS_METRIC = auto()
    """Reports a metric with hypertune, with the tag `name` if that is a literal."""
    WRITES_SUMMARY = auto()
    RESOLVES_TPU = auto()


class Use(Struct, frozen=True):
    """Use of a variable, path or service in code.

    Attributes:
        line: From 1.
        name: Its object, as its kind says.
        call: The function that gets a path, as it is written.
        function: The function that it is in, as in a `Visit`; None if it may not run.
        path: The file, relative to the package; "" in a `FileFacts`.
    """

    line: int
    kind: UseKind
    name: str = ""
    call: str = ""
    function: str | None = None
    path: str = ""


class Option(Struct, frozen=True):
    """Command-line option that code declares with argparse, absl or click.

    Attributes:
        line, function, path: As those of a `Use`.
        names: Its names, without the dashes before them; () if they aren't literal.
        is_required: True if the program ends without it.
        is_strict: True if `-` and `_` differ in its names.
        default: The beginning of its default, as the name of `UseKind.OPENS`; "" if that is unknown.
    """

    line: int
    names: tuple[str, ...]
    is_required: bool = False
    is_strict: bool = True
    default: str = ""
    function: str | None = None
    path: str = ""


class Unread(Struct, frozen=True, order=True):
    """File that isn't read; `reason` is a clause."""

    path: str
    line: int
    reason: str


class FileFacts(Struct, frozen=True):
    """Facts of a file.

    Attributes:
        uses: All uses.
        options: All options with literal names.
        names: The names that each of its functions uses, from `references`.
        prepared: The variables with a possible provision for their absence.
        fillers: The functions that get a parser of arguments, and may declare options.
        has_more_options: True if it may take other options.
    """

    uses: tuple[Use, ...]
    options: tuple[Option, ...]
    names: Mapping[str, set[str]]
    prepared: frozenset[str]
    fillers: frozenset[str]
    has_more_options: bool


class CodeFacts(Struct, frozen=True):
    """Facts of a running program: uses and options with their paths.

    Attributes:
        unread: Its files that aren't read.
        has_more_options: True if it may take other options.
        has_unused: True if needs or opened paths stand in functions that these files don't call.
    """

    uses: tuple[Use, ...]
    options: tuple[Option, ...]
    unread: tuple[Unread, ...]
    has_more_options: bool
    has_unused: bool
