"""Service without its HTTP server: finds the method of an admitted request, and builds the response.

`open_copy` answers from the state of a stopped service, without a change of its home.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard, TypeVar

from reconciler.base.http import DirectTransport
from reconciler.base.listener.message import Request, Response
from reconciler.training_service.address import code_version, unserved
from reconciler.training_service.apis.ai_platform import MlJobs
from reconciler.training_service.apis.credentials import (
    CredentialsApi,
)
from reconciler.training_service.apis.logging import LoggingApi
from reconciler.training_service.apis.models import Models
from reconciler.training_service.apis.pipelines import Pipelines
from reconciler.training_service.apis.vertex_ai import CustomJobs, TuningJobs
from reconciler.training_service.http import discovery, field_masks, json_mapping
from reconciler.training_service.http.auth import EVERYTHING, Access, Tokens
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.discovery import Form, Match
from reconciler.training_service.http.message import (
    ApiError,
    error_response,
    invalid,
    json_response,
    not_found,
)
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.scheduler.recovery import recover_states
from reconciler.training_service.state import database
from reconciler.training_service.state.database import (
    CLAIMS,
    COPIED_LABELS,
    PUBLIC,
    REACHABLE,
    Database,
    DatabaseError,
    Store,
)
from reconciler.training_service.state.models import ModelStore
from reconciler.training_service.state.records import JobRecord, Json, JsonObject, Wait
from reconciler.training_service.storage import batch
from reconciler.training_service.storage.api import StorageApi
from reconciler.training_service.storage.files import is_bucket_name
from reconciler.training_service.storage.public import LayeredObjects, PublicBuckets, set_public
from reconciler.training_service.storage.upload_sessions import Uploads

MAX_MESSAGE = 10 * 1024 * 1024
"""The size limit of JSON bodies in bytes; it doesn't apply to uploads."""

IMAGES = "images"
"""The setting with overrides of the image table: image -> {"python", "requirements"}."""

_log = logging.getLogger(__name__)


T = TypeVar("T")

_READS = ("logging.entries.list",)  # the methods that read although their verb isn't GET
# The request fields that hold the whole body, as errors name them.
_FIELDS = {
    "GoogleCloudAiplatformV1CustomJob": "custom_job",
    "GoogleCloudAiplatformV1HyperparameterTuningJob": "hyperparameter_tuning_job",
    "GoogleCloudAiplatformV1Model": "model",
    "GoogleCloudAiplatformV1TrainingPipeline": "training_pipeline",
    "GoogleCloudMlV1__Job": "job",
}
_MODELS = (
    "Nothing is served from a model here: load its files to predict. A job writes them to a bucket, in"
    " AIP_MODEL_DIR or its job-dir."
)
# What to use instead of methods that this service lacks, by the beginning of their ids, the longest first.
_INSTEAD = {
    **dict.fromkeys(
        (
            "aiplatform.projects.locations.batchPredictionJobs",
            "aiplatform.projects.locations.deploymentResourcePools",
            "aiplatform.projects.locations.endpoints",
            "ml.projects.locations",
            "ml.projects.models",
            "ml.projects.predict",
            "ml.projects.explain",
        ),
        _MODELS,
    ),
    "aiplatform.projects.locations.customJobs.operations": "Its methods answer at once, without operations.",
    "aiplatform.projects.locations.trainingPipelines": "Its methods answer at once, without operations.",
    "aiplatform.projects.locations.datasets": "Data are files here, in a bucket that the job names.",
    "aiplatform.projects.locations.models.operations": "Its methods answer at once, without operations.",
    "aiplatform.projects.locations.models": (
        "It keeps records of models and their versions, and evaluates, copies and serves none: use a model's"
        " files, which are in the bucket that its artifactUri names."
    ),
    "aiplatform.projects.locations.pipelineJobs": "Create a customJob for each training step.",
    "aiplatform.projects.locations.schedules": "Create a customJob when it is to run, from cron for example.",
    "aiplatform.projects.locations.studies": "Create a hyperparameterTuningJob: it runs the study's trials.",
    "aiplatform.projects.locations.tensorboards": "Open a job's logs with `reconciler tensorboard NAME`.",
    "aiplatform.": "It serves training jobs and pipelines, and keeps models: use Google's for others.",
    "ml.": "It serves projects.jobs: use the jobs' own fields.",
    "storage.buckets.": "A bucket's fields are those that it was created with.",
    "storage.objects.update": "Use storage.objects.patch.",
    "storage.folders.": "Buckets are flat here: insert the object NAME/ to make a folder.",
    "storage.": "It keeps buckets, objects and the IAM policies of buckets, and limits nobody by them.",
    "logging.": "It serves entries.list and entries.write.",
    "iamcredentials.": "It serves generateAccessToken.",
}
_XML = (
    "This service serves Cloud Storage's XML API for downloads of objects alone. Upload by the JSON API: in"
    " chunks of one resumable upload, or as several objects that compose makes one."
)
# Errors of the disk or of a limit, which are reported as UNAVAILABLE, so that clients may try again.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class Application:
    """All APIs over one home.

    Attributes:
        wake: Called after a job is created or is to be cancelled.
        wait_of: Returns the reason why a queued job waits, if it is known.
        read_only: Refuse changes, because no service runs to carry them out.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        wake: Callable[[], None] = lambda: None,
        wait_of: Callable[[JobRecord], Wait | None] = lambda job: None,
        read_only: bool = False,
    ) -> None:
        pages = Pages(store)
        # A stopped service's state is read without a change of its home.
        public = PublicBuckets(
            home, lambda: () if read_only else store.setting(PUBLIC) or (), DirectTransport()
        )
        objects = LayeredObjects(home, store.database, store.clock, public)
        self._clock = store.clock
        self._read_only = read_only
        self._handlers: dict[str, Handler] = {
            **CustomJobs(store, home, pages, wake).handlers(),
            **TuningJobs(store, home, pages, wake).handlers(),
            **Pipelines(store, home, pages, wake).handlers(),
            **Models(ModelStore(store.database, store.clock), pages).handlers(),
            **MlJobs(store, home, pages, wake).handlers(),
            **StorageApi(objects, Uploads(home), pages).handlers(),
            **LoggingApi(store, home, pages, wait_of).handlers(),
            **CredentialsApi(Tokens(store)).handlers(),
        }

    def handle(self, request: Request, access: Access = EVERYTHING) -> Response:
        """Return the response to a request, dated by the service's clock; errors become responses too."""
        # The time before reading: the answer's content is never older than its date.
        began = self._clock()
        return _with_date(reply_to(request, lambda: self._answer(request, access)), began)

    def _answer(self, request: Request, access: Access) -> Response:
        if (request.method, request.path) == ("POST", batch.PATH):
            return batch.answer(request, MAX_MESSAGE, lambda inner: self.handle(inner, access))
        match = discovery.match(request.method, request.path)
        if match is None or (match.form is Form.DOWNLOAD and _is_of_xml_upload(request)):
            raise _no_such_method(request)
        handler = self._handlers[match.method.id]
        if self._read_only and match.method.verb != "GET" and match.method.id not in _READS:
            raise ApiError("FAILED_PRECONDITION", "The embedded training service isn't running.")
        answer = handler(_call(request, match, access))
        return answer if isinstance(answer, Response) else _json_answer(request, answer)


def _no_such_method(request: Request) -> ApiError:
    method = discovery.unserved(request.method, request.path)
    if not method and discovery.is_object(request.path):
        raise ApiError("UNIMPLEMENTED", _XML)
    if not method:
        return not_found("Method not found.")
    instead = next(text for begin, text in _INSTEAD.items() if method.startswith(begin))
    return ApiError("UNIMPLEMENTED", f"This service doesn't serve {method}. {instead}")


def _is_of_xml_upload(request: Request) -> bool:
    return discovery.is_object(request.path) and bool(request.parameter("uploadId"))


def reply_to(request: Request, answer: Callable[[], T]) -> T | Response:
    """Return the result of `answer`, or the response for what it raises; log unexpected errors."""
    try:
        return answer()
    except ApiError as error:
        return error_response(request, error)
    except DatabaseError as error:
        _log.error("the database failed: %s", error)
        return error_response(request, ApiError("UNAVAILABLE", f"The service can't keep its state: {error}"))
    except OSError as error:
        return error_response(request, _of_system(error))
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return error_response(request, ApiError("INTERNAL", "Internal error encountered."))


def _with_date(response: Response, at: datetime) -> Response:
    dated = (*response.headers, ("Date", _date(int(at.timestamp()))))
    return Response(response.status, dated, response.content, response.file, response.length)


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def _call(request: Request, match: Match, access: Access) -> Call:
    method = match.method
    # The body of an upload is its content, no message. Its steps carry an id that the discovery document
    # doesn't list.
    upload = match.form is Form.UPLOAD
    query = tuple(pair for pair in request.query if not upload or pair[0] != "upload_id")
    parameters = json_mapping.read_parameters(method, query)
    alt = str(parameters.get("alt", "json")).partition(";")[0]
    if alt not in ("json", "media"):
        raise invalid(f"This service doesn't answer in {alt!r}.")
    body: JsonObject = {}
    if method.request and not upload:
        body = _message(request, match)
    return Call(request, method, match.form, match.path, {**parameters, "alt": alt}, body, access)


def _message(request: Request, match: Match) -> JsonObject:
    text = request.body.read(MAX_MESSAGE + 1)
    if len(text) > MAX_MESSAGE:
        raise invalid(f"Request payload size exceeds the limit: {MAX_MESSAGE} bytes.")
    api, schema = match.method.api, match.method.request
    patch = api.name == "storage" and match.method.verb == "PATCH"
    return json_mapping.read_message(
        api, schema, json_mapping.read_json(text), _FIELDS.get(schema, ""), nulls=patch
    )


def _json_answer(request: Request, message: JsonObject) -> Response:
    mask = request.parameter("fields")
    value = field_masks.masked(message, field_masks.cached_mask(mask)) if mask else message
    return json_response(value, pretty=request.parameter("prettyPrint") != "false")


def _of_system(error: OSError) -> ApiError:
    if error.errno in _FULL:
        _log.error("the system failed: %s", error)
        return ApiError("UNAVAILABLE", f"The service can't read or write its files: {error.strerror}")
    _log.error("unexpected system error", exc_info=error)
    return ApiError("INTERNAL", "Internal error encountered.")


class Admin:
    """Handler of the service's own paths; `stop` ends the service soon, not its jobs."""

    def __init__(self, store: Store, home: Path, stop: Callable[[], None]) -> None:
        self._store = store
        self._home = home
        self._stop = stop
        self._paths: dict[tuple[str, str], Callable[[Request], JsonObject]] = {
            ("GET", "/_service/health"): self._health,
            ("POST", "/_service/stop"): self._end,
            ("PUT", "/_service/images"): self._set_images,
            ("PUT", "/_service/claims"): self._set_claims,
            ("PUT", "/_service/buckets"): self._set_buckets,
            ("PUT", "/_service/pipelines"): self._set_pipelines,
        }

    def handle(self, request: Request) -> Response:
        """Return the response to an admitted request.

        Raises:
            ApiError, DatabaseError: The request failed.
        """
        answer = self._paths.get((request.method, request.path))
        if answer is None:
            raise not_found("Method not found.")
        return json_response(answer(request))

    def _health(self, request: Request) -> JsonObject:
        return {"version": code_version(), "pid": os.getpid()}

    def _end(self, request: Request) -> JsonObject:
        self._stop()
        return {}

    def _set_images(self, request: Request) -> JsonObject:
        """Set the overrides of the image table for jobs created from now on."""
        images = _body(request)
        for image, override in images.items():
            if not isinstance(override, dict) or override.keys() - {"python", "requirements"}:
                raise invalid(f"{image}: must hold python, requirements, and nothing else.")
            python, requirements = override.get("python", ""), override.get("requirements", [])
            if not isinstance(python, str) or not _is_text_list(requirements):
                raise invalid(f"{image}: python must be a text, requirements a list of texts.")
        self._store.set_setting(IMAGES, images)
        return {}

    def _set_claims(self, request: Request) -> JsonObject:
        """Reserve {"reserved": ["bucket", "bucket/prefix"]}: no job can reach them from now on."""
        reserved = _body(request).get("reserved")
        if not _is_text_list(reserved):
            raise invalid("reserved: must be a list of texts.")
        self._store.set_setting(CLAIMS, reserved)
        return {}

    def _set_buckets(self, request: Request) -> JsonObject:
        """Set {"reachable": ["bucket"], "public": ["bucket"]}: what all jobs reach, and what is Google's."""
        body = _body(request)
        reachable, public = (_buckets(body, field) for field in ("reachable", "public"))
        self._store.set_setting(REACHABLE, [*reachable, *public])
        set_public(self._store, self._home, public)
        return {}

    def _set_pipelines(self, request: Request) -> JsonObject:
        """Set {"labelsOnBackingJobs": true}: new pipelines' backing jobs have the pipelines' labels too.

        Whether those of Vertex AI have them isn't documented.
        """
        copied = _body(request).get("labelsOnBackingJobs")
        if not isinstance(copied, bool):
            raise invalid("labelsOnBackingJobs: must be true or false.")
        self._store.set_setting(COPIED_LABELS, copied)
        return {}


def _body(request: Request) -> JsonObject:
    return json_mapping.read_json(request.body.read(MAX_MESSAGE))


def _buckets(body: JsonObject, field: str) -> list[str]:
    names = body.get(field)
    if not _is_text_list(names) or not all(map(is_bucket_name, names)):
        raise invalid(f"{field}: must be a list of names of buckets.")
    return names


def _is_text_list(value: Json) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@contextmanager
def open_copy(home: Path) -> Iterator[Application]:
    """Yield the application over a private copy of a home's state; objects and logs are read in place.

    The application shows endings that runs have recorded since the service died. It refuses changes with
    FAILED_PRECONDITION. A missing home counts as empty.

    Raises:
        ServiceRunningError: A service runs; send it the requests instead.
        DatabaseError: The state can't be read.
        OSError: The same.
    """
    # Without a handler, Python prints errors with their tracebacks among the caller's messages.
    logging.getLogger("reconciler.training_service").addHandler(logging.NullHandler())
    with closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as memory:
        with unserved(home):
            _copy_database(home / "state.db", memory)
        store = Store(Database(lambda: memory))
        recover_states(store, home)
        yield Application(store, home, read_only=True, wait_of=_wait_of)


def _wait_of(job: JobRecord) -> Wait:
    return Wait("Queued: the embedded training service isn't running.", job.create_time)


def _copy_database(path: Path, memory: sqlite3.Connection) -> None:
    """Fill `memory` with the state, and upgrade it to this version's format."""
    try:
        if path.exists():
            _copy_file(path, memory)
        database.prepare(memory)
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _copy_file(path: Path, memory: sqlite3.Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="reconciler-") as folder:
        copy = Path(folder) / path.name
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with closing(sqlite3.connect(copy)) as opened:
            opened.backup(memory)
