"""Settings in `reconciler.yaml`: environments, limits, images, id of the jobs; and a command's manifests.

`settings_findings` has the rules that the settings' schema can't express.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from reconciler.base.diagnostics import Finding, Kind, Problem, quote
from reconciler.base.errors import InvalidError, UsageError
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests import schemas
from reconciler.manifests.field_relations import LONG_TIMEOUT, is_above_week
from reconciler.manifests.files import SUFFIXES, read_one
from reconciler.manifests.job_fields import network_findings
from reconciler.manifests.known_values import region_doubt
from reconciler.manifests.publications import (
    OWN_FOLDERS,
    PUBLISH,
    place_of_instance,
    publication_settings_findings,
)
from reconciler.manifests.validate import Validation, check_document
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject, Manifest, Publish
from reconciler.packaging.requirement_lines import option_remedy

FILE_NAME = "reconciler.yaml"
LOCAL = "local"
EngineName = Literal["local", "google"]
Outputs = Literal["own", "shared"]


class Limits(Struct, frozen=True):
    """Limits of one apply; None is no limit."""

    submissions: int | None = None
    cancels: int | None = None
    accelerator_hours: float | None = None
    publications: int | None = None


GOOGLE_LIMITS = Limits(submissions=20, cancels=5, accelerator_hours=1000, publications=20)


class Environment(Struct, frozen=True):
    """Target environment of jobs.

    Attributes:
        name: Its name for `--env` and in commit statuses.
        engine: `local` is the embedded service, `google` is Google Cloud.
        project: The project's id.
        location: The region, such as `us-central1`.
        staging_bucket: Bucket for uploaded packages, without `gs://`.
        claims_bucket: Bucket for claims, without `gs://`.
        endpoints: URLs to use in place of Google's, by API: `aiplatform`, `ml`, `storage`, `logging`,
            `iamcredentials`.
        defaults: Values for fields that a manifest omits; no part of a job's identity.
        outputs: Where runs write: each in a folder of its own, or in the manifest's folder as it is; None if
            the settings don't say, which means the latter.
        limits: The limits of one apply.
        submitter: The service account whose short-lived tokens create requests carry; "" for the user's own
            credentials.
        instance: Name that separates environments with the same Google project and location; "" for at most
            one of them.
        publish: The folder (gs://…), without a slash at its end, that has the publications of manifests
            without an address of their own; "" for none.
    """

    name: str
    engine: EngineName
    project: str
    location: str
    staging_bucket: str
    claims_bucket: str
    endpoints: Mapping[str, str] = {}
    defaults: JsonObject = {}
    outputs: Outputs | None = None
    limits: Limits = Limits()
    submitter: str = ""
    instance: str = ""
    publish: str = ""

    @property
    def filled(self) -> frozenset[str]:
        """What it gives to manifests: its defaults' names, `PUBLISH`, `OWN_FOLDERS` and `LONG_TIMEOUT`."""
        given = {
            PUBLISH: bool(self.publish),
            OWN_FOLDERS: self.outputs == "own",
            LONG_TIMEOUT: is_above_week(self.defaults.get("timeout")),
        }
        return frozenset([*self.defaults, *(name for name, is_given in given.items() if is_given)])

    def published(self, manifest: Manifest) -> Publish | None:
        """Return where a manifest's result is published; None for nowhere."""
        if manifest.publish is None or manifest.publish.to:
            return manifest.publish
        return structs.replace(manifest.publish, to=f"{self.publish}/{manifest.name}")


class Config(Struct, frozen=True):
    """All settings of one repository.

    Attributes:
        root: The repository's root.
        source: The id that marks the jobs of this repository.
        environments: By name; always includes `local`.
        images: The embedded service's executor images and runtimes, in addition to its own table.
        buckets: The embedded service's buckets that every job reaches, without gs://.
        public_buckets: Google's buckets that it reads without credentials, without gs://.
        github: The `github` settings; None if the file has none.
        digest: The BLAKE2b digest of the file's bytes when they were read, 32 bytes; b"" if it is missing.
        warnings: What is probably a mistake in the file.
        acknowledged: The kinds of warnings that are meant so.
    """

    root: Path
    source: str
    environments: Mapping[str, Environment]
    images: JsonObject
    github: JsonObject | None
    buckets: tuple[str, ...] = ()
    public_buckets: tuple[str, ...] = ()
    digest: bytes = b""
    warnings: tuple[Problem, ...] = ()
    acknowledged: frozenset[WarningKind] = frozenset()

    def buckets_of(self, environment: Environment) -> frozenset[str]:
        """Return the buckets that the settings name for the jobs of an environment, without gs://.

        Google's buckets, which are read only, are not among them.
        """
        folders = (environment.defaults.get("baseOutputDirectory", ""), environment.publish)
        of_folders = {_bucket(folder).partition("/")[0] for folder in folders if folder}
        return frozenset({environment.staging_bucket, environment.claims_bucket, *self.buckets, *of_folders})

    def environment(self, name: str | None) -> Environment:
        """Return the environment called `name`, by default `local`; raises UsageError if it is missing."""
        name = name or LOCAL
        if name not in self.environments:
            names = ", ".join(sorted(self.environments))
            raise UsageError(f'there is no environment "{name}"', hint=f"{FILE_NAME} has: {names}")
        return self.environments[name]

    def neighbours(self, environment: Environment) -> frozenset[str]:
        """Return the instances of the other environments with the same engine, project and location."""
        scope = environment.engine, environment.project, environment.location
        return frozenset(
            other.instance
            for other in self.environments.values()
            if (other.engine, other.project, other.location) == scope and other.name != environment.name
        )

    def sharing(self, environment: Environment) -> str:
        """Return another environment with the same engine and project, whatever its location; "" for none."""
        scope = environment.engine, environment.project
        others = (other for other in self.environments.values() if (other.engine, other.project) == scope)
        return next((other.name for other in others if other.name != environment.name), "")


def find_root(start: Path) -> Path:
    """Return the nearest folder upwards with `reconciler.yaml` or `.git`, else `start` itself."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file() or (folder / ".git").exists():
            return folder
    return start


def load_config(root: Path) -> Config:
    """Return the settings of the repository at `root`; without a file, jobs run on the embedded service.

    Raises InvalidError with all problems of the file.
    """
    value, problems, warnings, digest = _read(root)
    if problems:
        raise InvalidError(f"{FILE_NAME} is not valid", problems=problems)
    return structs.replace(from_document(root, value, digest), warnings=warnings)


def read_document(root: Path) -> tuple[JsonObject, list[Problem], tuple[Problem, ...]]:
    """Return `reconciler.yaml`, its problems and its warnings; an empty mapping if invalid or missing."""
    value, problems, warnings, _ = _read(root)
    return value, problems, warnings


def content_digest(root: Path) -> bytes:
    """Return the digest of the settings file's bytes, as `Config` has it; b"" if it can't be read."""
    data = _bytes(root)
    return _digest(data) if isinstance(data, bytes) else b""


def _bytes(root: Path) -> bytes | Problem | None:
    """Return the settings file's bytes, or why it can't be read; None if it is missing."""
    path = root / FILE_NAME
    if not path.exists():
        return None
    # Imported here, as a repository without the file needs no reader.
    return read_one(path, FILE_NAME)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def _read(root: Path) -> tuple[JsonObject, list[Problem], tuple[Problem, ...], bytes]:
    """Return the result of `read_document` and the digest of the file's bytes."""
    data = _bytes(root)
    if not isinstance(data, bytes):
        return {}, [data] if data else [], (), b""
    schema = schemas.document(schemas.SETTINGS)
    value, all_problems = check_document(data, schema, FILE_NAME, settings_findings)
    problems = [problem for problem in all_problems if not problem.kind]
    warnings = tuple(problem for problem in all_problems if problem.kind)
    return value or {}, problems, warnings, _digest(data)


def from_document(root: Path, value: JsonObject, digest: bytes = b"") -> Config:
    """Return the settings of a valid document, with defaults filled in."""
    written: Mapping[str, Any] = value.get("environments") or {}
    environments = {name: _environment(name, part or {}, value) for name, part in written.items()}
    environments.setdefault(LOCAL, _environment(LOCAL, {}, value))
    return Config(
        root=root,
        source=value.get("source") or LOCAL,
        environments=environments,
        images=value.get("images") or {},
        buckets=tuple(map(_bucket, value.get("buckets") or ())),
        public_buckets=tuple(map(_bucket, value.get("publicBuckets") or ())),
        github=value.get("github"),
        digest=digest,
        acknowledged=frozenset(kind for kind in WarningKind if kind in (value.get("warnings") or ())),
    )


def _environment(name: str, part: JsonObject, settings: JsonObject) -> Environment:
    """Return an environment; `settings` are the whole document, for what the environment doesn't say."""
    limits = settings.get("limits") or {}
    engine: EngineName = part.get("engine") or "local"
    staging = _bucket(part.get("stagingBucket") or "reconciler-staging")
    return Environment(
        name=name,
        engine=engine,
        project=part.get("project") or LOCAL,
        location=part.get("location") or LOCAL,
        staging_bucket=staging,
        claims_bucket=_bucket(part.get("claimsBucket") or staging),
        endpoints=part.get("endpoints") or {},
        defaults=_defaults(part),
        outputs=part.get("outputs") or settings.get("outputs"),
        limits=_limits(engine, {**limits, **(part.get("limits") or {})}),
        submitter=part.get("submitter") or "",
        instance=part.get("instance") or "",
        publish=_place(part, "publish"),
    )


def _defaults(part: JsonObject) -> JsonObject:
    given = {"region": part["location"]} if part.get("location") else {}
    defaults = {**given, **(part.get("defaults") or {})}
    defaults.pop("publish", None)  # no field of a job
    if "baseOutputDirectory" in defaults:
        defaults["baseOutputDirectory"] = _place(part, "baseOutputDirectory")
    return defaults


def _place(part: JsonObject, name: str) -> str:
    """Return a folder (gs://…) of an environment's defaults; "" for none."""
    place = (part.get("defaults") or {}).get(name, "")
    # Instances that share defaults would overwrite each other's models: each gets a folder of its own.
    return place_of_instance(place, part.get("instance") or "") if place else ""


def _bucket(text: str) -> str:
    return text.removeprefix("gs://").rstrip("/")


def _limits(engine: EngineName, part: JsonObject) -> Limits:
    base = Limits() if engine == "local" else GOOGLE_LIMITS
    return Limits(
        submissions=part.get("submissions", base.submissions),
        cancels=part.get("cancels", base.cancels),
        accelerator_hours=part.get("acceleratorHours", base.accelerator_hours),
        publications=part.get("publications", base.publications),
    )


JOBS_FOLDER = "jobs"


def check_found(validation: Validation, paths: Sequence[Path]) -> None:
    """Raise UsageError if the named paths contain no manifest: a mistyped path must not pass for valid."""
    if paths and not validation.files:
        named = ", ".join(str(path) for path in paths)
        raise UsageError(f"there is no manifest below {named}", hint="manifests are files *.yaml and *.yml")


def is_manifest(name: str) -> bool:
    """Return True if a file of this name may hold manifests."""
    return name.endswith(SUFFIXES)


# A project's id has at most 30 characters:
# https://cloud.google.com/resource-manager/docs/creating-managing-projects
_MAX_PROJECT = 30

_SINGLE_EQUALS_SIGN = re.compile(r"\s*([\w.-]+(?:\[[^]]*\])?)\s*=(?!=)")

_Scope = tuple[str, ...]


def settings_findings(settings: Any) -> Iterator[Finding]:
    """Yield the mistakes in settings that their schema can't express, and regions that are doubtful."""
    yield from shared_environments(settings)
    yield from publication_settings_findings(settings)
    yield from _requirement_findings(settings)
    for name, value in _mapping(_mapping(settings).get("environments")).items():
        environment = _mapping(value)
        defaults = _mapping(environment.get("defaults"))
        regions: list[tuple[str, tuple[str, ...], Any]] = [
            (ML_V1, ("defaults", "region"), defaults.get("region"))
        ]
        if environment.get("engine") == "google":  # elsewhere any location will do
            regions.append((AIPLATFORM_V1, ("location",), environment.get("location")))
        network_keys = ("environments", name, "defaults", "network")
        yield from network_findings(network_keys, defaults.get("network"))
        for api_version, keys, region in regions:
            if isinstance(region, str) and region and (doubt := region_doubt(api_version, region)):
                region_keys = ("environments", name, *keys)
                yield Finding(region_keys, doubt.message, doubt.hint, kind=doubt.kind)


def _requirement_findings(settings: Any) -> Iterator[Finding]:
    """Yield mistakes in images' requirements: `numpy=1`, which is conda's form, and options of pip."""
    for image, entry in _mapping(_mapping(settings).get("images")).items():
        lines = _mapping(entry).get("requirements")
        for number, line in enumerate(lines if isinstance(lines, list) else ()):
            line_keys = ("images", image, "requirements", number)
            if not isinstance(line, str):
                continue
            if match := _SINGLE_EQUALS_SIGN.match(line):
                right = f"{match[1]}=={line[match.end() :].lstrip()}"
                yield Finding(line_keys, f"{quote(line)} is not a requirement", f"write {quote(right)}")
            elif line.lstrip().startswith("-"):
                # Without its value, which may have a password.
                option = re.split(r"[\s=]", line.strip(), maxsplit=1)[0]
                message = f"{quote(option)} is an option of pip, not a requirement"
                yield Finding(line_keys, message, option_remedy(line.strip()) or "remove it")


def shared_environments(settings: Any) -> Iterator[Finding]:
    """Yield a finding for each environment that shares its claims or its output folder with an earlier one.

    Neither an environment nor its defaults are part of a job's name. Environments that share their claims
    take each other's jobs for their own: a job that ran in one would never run in the other. In a shared
    folder, the same job has the same path in both.
    """
    written = _mapping(_mapping(settings).get("environments"))
    first: dict[_Scope, str] = {}
    first_of_folder: dict[tuple[str, str], str] = {}
    if LOCAL not in written:
        first[_scope_on_training_service({})] = LOCAL
    for name, value in written.items():
        environment = _mapping(value)
        match environment.get("engine", LOCAL if name == LOCAL else None):
            case "google":
                scope, explain = _scope_at_google(environment), _shared_at_google
            case "local":
                scope, explain = _scope_on_training_service(environment), _shared_on_training_service
            case _:
                continue
        other = first.setdefault(scope, name)
        if other != name:
            yield Finding(("environments", name), *explain(name, other, scope), of_key=True)
        folder = _mapping(environment.get("defaults")).get("baseOutputDirectory")
        if isinstance(folder, str):
            engine, instance = scope[0], str(environment.get("instance") or "")
            other = first_of_folder.setdefault((engine, place_of_instance(folder, instance)), name)
            if other != name:
                keys = ("environments", name, "defaults", "baseOutputDirectory")
                message = (
                    f"the environments {quote(other)} and {quote(name)} share this folder: a model of one "
                    "would overwrite the model of the other"
                )
                # Only a warning at Google: repositories have such settings, and their applies must go on.
                kind: Kind = WarningKind.SHARED_FOLDER if engine == "google" else ""
                hint = f"write another folder, such as {folder.rstrip('/')}/{name}"
                yield Finding(keys, message, hint, kind=kind)


def _scope_at_google(environment: Mapping[Any, Any]) -> _Scope:
    return ("google", *(str(environment.get(part) or "") for part in ("project", "location", "instance")))


def _scope_on_training_service(environment: Mapping[Any, Any]) -> _Scope:
    return ("local", *(str(environment.get(part) or LOCAL) for part in ("project", "location")))


def _shared_at_google(name: str, other: str, scope: _Scope) -> tuple[str, str]:
    _, project, location, instance = scope
    same = f"the project {quote(project)} and the location {quote(location)}"
    if instance:
        same = f"{same}, and the instance {quote(instance)}"
        return _shared_message(name, other, same), f'choose another "instance" for {quote(name)}'
    hint = (
        f'write "instance: {name}" in the environment that is new: the one without "instance" keeps '
        "the claims and jobs that exist"
    )
    return _shared_message(name, other, same), hint


def _shared_on_training_service(name: str, other: str, scope: _Scope) -> tuple[str, str]:
    _, project, location = scope
    new_project = f"local-{other if name == LOCAL else name}"[:_MAX_PROJECT].rstrip("-")
    hint = (
        f'write a project of its own, such as "project: {new_project}", in the environment that is new: the '
        "other one keeps the claims and jobs that exist"
    )
    same = f"the project {quote(project)} and the location {quote(location)} of the training service"
    return _shared_message(name, other, same), hint


def _shared_message(name: str, other: str, shared: str) -> str:
    return (
        f"the environments {quote(other)} and {quote(name)} share {shared}: a job that ran in one would "
        "count as done in the other"
    )


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
