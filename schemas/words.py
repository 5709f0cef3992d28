r"""The words that rules are written with, and the conventions of the schemas' own keywords.

The validator (`reconciler/manifests/messages.py`) reads these beside JSON Schema's keywords:

x-message
    In the subschema whose keyword fails: what is wrong, in place of a sentence made from the keyword. Such a
    subschema holds one rule and no `type`, and stands in an `allOf`, so that a wrong type is told as such.
x-hint
    What to write instead; beside `x-message`, or alone, beside a keyword that has its sentence made.
x-cut
    Beside `x-message`, in place of `x-hint`: the pattern of a beginning that doesn't belong there; the hint
    is to write the value without it.
x-gcloud-flag
    Beside `required`: field -> the gcloud flag that gives the same, to be named where the field is missing.
x-output-only, x-set-by-reconciler
    Beside `properties`: names that only the service, or only the reconciler, sets. They are no properties, so
    `additionalProperties: false` refuses them, and the list says why.
x-refused
    Beside `properties`: other names that are no properties -> what to write instead.
x-unspecified
    Beside `enum`: the API's values that count as no value.
x-not-null
    Beside `$ref`: true for an optional field that is never written as null, which would be meant as a value.

A field that must not be there under a condition has the schema `{"not": {}, "x-message": …}` below that
condition, so that the place of the failure is the field. In `propertyNames` the failing instance is the key,
and its place the mapping.

`format` is the API's (https://developers.google.com/discovery/v1/type-format). "int64" is an integer or a
string of its digits, and only the format says that 19 digits may be too much for 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Schema = dict[str, Any]


def whole(pattern: str) -> str:
    r"""A pattern for the whole string.

    Python's `$` also matches before a last line end; with `(?!\n)` it means the same as in ECMA.
    """
    return rf"^(?:{pattern})$(?!\n)" if "|" in pattern else rf"^{pattern}$(?!\n)"


def told(rule: Schema, message: str, hint: str = "") -> Schema:
    """`rule`, with what to say when it fails."""
    return {**rule, "x-message": message} | ({"x-hint": hint} if hint else {})


def without(pattern: str, message: str) -> Schema:
    """A string that doesn't begin with this pattern, whose rest is what was meant."""
    return {"not": {"type": "string", "pattern": f"^(?:{pattern})"}, "x-message": message, "x-cut": pattern}


def shaped(pattern: str, message: str, hint: str) -> Schema:
    """A string that has this pattern as a whole."""
    return told({"pattern": whole(pattern)}, message, hint)


def needs(name: str, hint: str = "", flag: str = "") -> Schema:
    """This field must be there; `flag` is gcloud's."""
    rule: Schema = {"required": [name]}
    return rule | ({"x-hint": hint} if hint else {}) | ({"x-gcloud-flag": {name: flag}} if flag else {})


def needs_items(name: str, hint: str = "", flag: str = "") -> Schema:
    """This list must be there and not empty."""
    return {**needs(name, hint, flag), "properties": {name: {"minItems": 1}}}


def forbidden(names: Sequence[str], message: str, hint: str) -> Schema:
    """None of these fields may be there."""
    return {"properties": {name: told({"not": {}}, message, hint) for name in names}}


def exactly_one(names: Sequence[str], message: str) -> Schema:
    """One of these fields, and no second one."""
    return told({"oneOf": [has(name) for name in names]}, message, f"give it one of: {', '.join(names)}")


def at_most_one(names: Sequence[str], message: str) -> list[Schema]:
    """No two of these fields; the place of the failure is the second one."""
    hint = f"keep one of: {', '.join(names)}"
    return [when(has(name), forbidden(names[at:], message, hint)) for at, name in enumerate(names[:-1], 1)]


def when(condition: Schema, *rules: Schema) -> Schema:
    """The rules hold where the condition does."""
    return {"if": condition, "then": rules[0] if len(rules) == 1 else {"allOf": list(rules)}}


def has(name: str, **keywords: Any) -> Schema:
    """The condition that a field is there and its value passes the keywords."""
    return {"required": [name]} | ({"properties": {name: keywords}} if keywords else {})


def lacks(condition: Schema) -> Schema:
    """The condition that another one doesn't hold."""
    return {"not": condition}


# https://protobuf.dev/reference/protobuf/google.protobuf/#duration: at most 315,576,000,000 seconds.
DURATION: Schema = {
    "type": "string",
    "format": "google-duration",
    "pattern": whole(r"[0-9]{1,12}(?:\.[0-9]{1,9})?s"),
}

# RFC 3339, section 5.6.
TIME: Schema = {
    "type": "string",
    "format": "google-datetime",
    "pattern": whole(
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
        r"(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
    ),
}

# JSON as proto3 writes it has a 64-bit integer as a string; people write a number into YAML.
INT64: Schema = {
    "type": ["integer", "string"],
    "format": "int64",
    "minimum": -(2**63),
    "maximum": 2**63 - 1,
    "pattern": whole("0|-?[1-9][0-9]{0,18}"),
}
FROM_0: Schema = {"minimum": 0, "pattern": whole("0|[1-9][0-9]{0,18}")}
FROM_1: Schema = {"minimum": 1, "pattern": whole("[1-9][0-9]{0,18}")}

# https://cloud.google.com/storage/docs/buckets#naming
BUCKET = "[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"

GS_FOLDER = shaped(
    rf"gs://{BUCKET}(?:/[^\x00-\x1f\x7f]*)?",
    "not a Cloud Storage folder",
    'write "gs://BUCKET/FOLDER"',
)
GS_OBJECT = shaped(
    rf"gs://{BUCKET}/[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f/]",
    "not a Cloud Storage object",
    'write "gs://BUCKET/FOLDER/FILE"',
)

_LONGEST_FOLDER = 512


def _published(folder: Schema, between: str, write: str) -> list[Schema]:
    """The rules of a publication's address, or of the path of what is published.

    Args:
        folder: The rule for the whole.
        between: The pattern of two slashes without a name between them.
        write: What to write instead.
    """
    return [
        told(
            {"maxLength": _LONGEST_FOLDER},
            "not a folder: it is too long",
            f"at most {_LONGEST_FOLDER} bytes",
        ),
        told(
            {"not": {"type": "string", "pattern": r"[#?*\[\]]"}},
            'not a single folder: "#", "?", "*", "[" and "]" stand for versions, or for several names',
            write,
        ),
        told(
            {"not": {"type": "string", "pattern": r"(?:^|/)\.{1,2}(?:/|$(?!\n))"}},
            'not a folder: no part of it may be "." or ".."',
            write,
        ),
        told(
            {"not": {"type": "string", "pattern": between}},
            "not a folder: a name is missing between two slashes",
            write,
        ),
        told(folder, folder["x-message"], write),
    ]


_NAMES = r"[^\x00-\x1f\x7f-\x9f]+"
PUBLISHED_ADDRESS = _published(
    shaped(rf"gs://{BUCKET}/{_NAMES}", "not a folder in a bucket of Cloud Storage", ""),
    "^gs://.*//",
    'write "gs://BUCKET/FOLDER"',
)
"""The address of a publication: a folder in a bucket."""
PUBLISHED_ADDRESSES = _published(
    shaped(rf"gs://{BUCKET}(?:/{_NAMES})?/?", "not a Cloud Storage folder", ""),
    "^gs://.*//",
    'write "gs://BUCKET", or "gs://BUCKET/FOLDER"',
)
"""Where the addresses of an environment's publications lie: a bucket, or a folder in one."""
_NO_PATH = "not a path below the run's folder"
_WRITE_PATH = 'write for example "model"'
PUBLISHED_PATH = [
    told({"not": {"type": "string", "pattern": "^/|://"}}, _NO_PATH, _WRITE_PATH),
    *_published(shaped(_NAMES, _NO_PATH, ""), "[^:]//", _WRITE_PATH),
]
"""The published folder, below the run's own."""

# Discovery, `network` of both APIs: "of the form `projects/{project}/global/networks/{network}`".
NETWORK = shaped(
    "projects/[^/]+/global/networks/[^/]+",
    "not the full name of a network",
    'write "projects/PROJECT_NUMBER/global/networks/NAME"',
)

# Discovery, `TrainingInput.serviceAccount`: "The email address of a service account". All of them end so
# (https://cloud.google.com/iam/docs/service-account-types), those of App Engine and Compute Engine too.
SERVICE_ACCOUNT = [
    without(
        "serviceAccount:|projects/[^/]+/serviceAccounts/", "not the e-mail address of a service account alone"
    ),
    shaped(
        r"[A-Za-z0-9][^@/:\s]*@[^@/:\s]+\.gserviceaccount\.com",
        "not the e-mail address of a service account",
        'write "NAME@PROJECT.iam.gserviceaccount.com"',
    ),
]

# https://cloud.google.com/storage/docs/objects#naming: "Objects cannot be named . or .."
GS_OBJECT_NAMED = told(
    {"not": {"type": "string", "pattern": whole(r"gs://[^/]*/\.\.?")}},
    'no object can be named "." or ".."',
    'write "gs://BUCKET/FOLDER/FILE"',
)

# `TrainingInput.region`: "The region to run the training job in. See the available regions". A zone is none:
# "Each zone name contains two parts […]. The first part of the zone name is the region"
# (https://cloud.google.com/compute/docs/regions-zones).
REGION = [
    shaped("[a-z][a-z0-9-]*", "not a region", 'write for example "us-central1"'),
    told(
        {"not": {"type": "string", "pattern": whole("[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")}},
        "not a region, but a zone",
        'write the region that the zone is in, without the zone\'s letter, such as "us-central1"',
    ),
]

# https://github.com/distribution/reference/blob/main/reference.go: the grammar of an image's name. A flag of
# an engine, or an address, is none. An empty name is the same as no name.
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?"
_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = ":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = "@[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
# https://github.com/containers/image/blob/main/docs/containers-transports.5.md: Podman reads images from
# other places too, most of them files. "docker:" is no such place without "//".
_TRANSPORTS = "containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball"
_NO_IMAGE = "not the name of a container image"
_WRITE_IMAGE = (
    'write "HOST/PROJECT/REPOSITORY/IMAGE:TAG" alone, without a placeholder such as "<project-id>", '
    'a flag or "https://"'
)
IMAGE = [
    without("[A-Za-z][A-Za-z0-9+.-]*://+", "not the name of a container image, but an address"),
    shaped(rf"(?:(?:{_HOST}/)?{_PART}(?:/{_PART})*(?:{_TAG})?(?:{_DIGEST})?)?", _NO_IMAGE, _WRITE_IMAGE),
    told(
        {"not": {"type": "string", "pattern": whole(rf"(?:{_TRANSPORTS}):.*")}},
        "not the name of an image in a registry, but of a place that an engine reads images from",
        'push the image, and write "HOST/PROJECT/REPOSITORY/IMAGE:TAG"',
    ),
]
