"""The kinds of warnings, by which `warnings` in `reconciler.yaml` acknowledges what is meant so."""

from __future__ import annotations

from enum import StrEnum


class WarningKind(StrEnum):
    """Kinds of warnings, each with a description; a kind keeps its name for ever, as settings name it."""

    description: str

    def __new__(cls, name: str, description: str) -> WarningKind:
        """Return a member whose value is its name in settings and in JSON."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.description = description
        return kind

    ARTIFACT_URI = "artifactUri", "A pipeline registers files that the run may not have written."
    CODE_ARGUMENT = "codeArgument", "The code and the job differ in an argument: one of them lacks it."
    CODE_PATH = "codePath", "The code opens a gs:// path like a file's."
    CODE_UNREAD = "codeUnread", "Some code of a package is not checked."
    CODE_VARIABLE = "codeVariable", "The code reads a variable that the service doesn't set for the job."
    COMMAND_WORDS = "commandWords", "Words of a command or of arguments that only a shell would understand."
    DOTS_IN_PATH = "dotsInPath", 'A gs:// path has "..", which is a plain name in Cloud Storage.'
    IDLE_REQUIREMENTS = "idleRequirements", "Nothing installs what a package's requirements.txt lists."
    IMAGE_END = "imageEnd", "Google has ended the availability of a prebuilt image, or its service."
    IMAGE_TAG = "imageTag", "A container's image isn't named by its digest, so that it may change."
    LFS_POINTER = "lfsPointer", "A file of a job's code is a Git LFS pointer here."
    MACHINE_TYPE = (
        "machineType",
        "A machine type is in no table of machines for training: it is new, or a mistake.",
    )
    MODEL_CONTAINER = "modelContainer", "A pipeline registers a model without a container that serves it."
    MODEL_ID = "modelId", "A pipeline's `modelId` is that of another one, or stands beside `parentModel`."
    MODULE_NAME = "moduleName", "A module's name ends in `.py`, as a file's would."
    NETWORK = "network", "A network is named by its project's id, where the API takes the number."
    NEW_MODEL = "newModel", "Each new content of a pipeline registers a new model."
    NO_EFFECT = "noEffect", "A field has no effect beside the other fields of its job."
    NO_JOBS_FOLDER = "noJobsFolder", "The repository has no folder `jobs`."
    OUTPUTS = "outputs", "`reconciler.yaml` doesn't say where runs write."
    PARALLEL_TRIALS = "parallelTrials", "A study runs more trials at once than it has."
    PARAMETER_NAME = "parameterName", "A study's parameter begins with the dashes that the service adds."
    PARTIAL_CHECKOUT = "partialCheckout", "Manifests of the repository are not in this checkout."
    PREDICTION_IMAGE = "predictionImage", "An image that serves predictions is to run a Python package."
    PUBLICATION_BUCKET = "publicationBucket", "Training jobs can write to the bucket of published models."
    REGION = "region", "A region is in no table: it is new, or misspelt."
    RETIRED_ACCELERATOR = "retiredAccelerator", "Google has an accelerator no more."
    SCALE_TIER = "scaleTier", "A job of AI Platform has no `scaleTier`, and so runs on one small machine."
    SHARED_FOLDER = "sharedFolder", "Several runs write to one folder."
    UNKNOWN_IMAGE = "unknownImage", "The embedded service doesn't know an image of Python packages."
    UNREADABLE_GIT = "unreadableGit", "git can't read the repository."
    UNTRACKED_CODE = "untrackedCode", "A file of a job's code is unknown to git, which another clone lacks."
    VARIABLE_VALUE = "variableValue", "A variable's value names another one as only a shell would."
    VERSION_ALIASES = "versionAliases", "A run moves the aliases of a model, whatever `expect` says."
