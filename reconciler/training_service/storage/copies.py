"""Copies of objects within the service: in one call, or as a rewrite whose client calls again for each part.

Cloud Storage rewrites in parts between locations or storage classes alone, and some clients count on that:
TensorFlow's rename fails when one call doesn't do it.

Source: the method objects.rewrite of Cloud Storage's JSON API.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from reconciler.training_service.http.call import Call
from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import Conditions, Content, check_holds
from reconciler.training_service.storage.public import LayeredObjects
from reconciler.training_service.storage.resources import object_body, object_resource
from reconciler.training_service.storage.upload_sessions import Uploads, UploadSession, copy_range
from reconciler.training_service.storage.uploads import check_generation, conditions_of

LARGEST_PART = 1024**3
"""The bytes of one call: clients wait half a minute and more for it."""
_STEP = 1024**2
_MOST = "maxBytesRewrittenPerCall"
_TOKEN = "rewriteToken"  # noqa: S105 (a parameter's name)

_Name = tuple[str, str]
"""An object's bucket and name."""


class Copies:
    """Copier of objects."""

    def __init__(self, objects: LayeredObjects, uploads: Uploads, pages: Pages) -> None:
        self._objects = objects
        self._uploads = uploads
        self._pages = pages

    def copied(self, call: Call, source: _Name, target: _Name) -> tuple[StoredObject, StoredObject]:
        """Copy an object whole; return the source and the copy.

        Raises:
            ApiError: NOT_FOUND; FAILED_PRECONDITION; PERMISSION_DENIED: The target is under a hold.
        """
        with self._checked(call, source, target) as content:
            return content.object, self._copied(call, content, target)

    def rewritten(self, call: Call, source: _Name, target: _Name) -> JsonObject:
        """Copy an object, or its next part; return the answer of objects.rewrite.

        Raises:
            ApiError: As `copied`; INVALID_ARGUMENT: The token is of another request; 410: Its copy has ended.
        """
        asked: Json = [call.method.id, *source, *target]
        token = call.text(_TOKEN)
        if not token:
            with self._checked(call, source, target) as content:
                size = content.object.size
                if size <= self._largest_part(call, content, target):
                    return _answer(call, size, size, self._copied(call, content, target))
                first = {"parameters": _fields(call), "body": call.body}
                about = {**first, "generation": content.object.generation, "copied": 0}
            token = self._pages.token(self._uploads.start(about), asked)
        upload = str(self._pages.position(token, asked))
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self._uploads.session(upload))
            except ApiError as error:
                message = f"This copy has ended, or waited too long; begin again without {_TOKEN}."
                raise ApiError("NOT_FOUND", message, http=410) from error
            if "object" in session.about:  # finished before, but the client missed the answer
                answer: JsonObject = session.about["object"]
                return answer
            call = _as_first(call, session.about)
            try:
                answer = self._next_part(call, session, source, target)
            except ApiError:
                session.give_up()
                raise
            return answer if answer["done"] else answer | {_TOKEN: token}

    @contextmanager
    def _checked(self, call: Call, source: _Name, target: _Name) -> Iterator[Content]:
        """Open the source of a copy that nothing forbids: `put` checks the target again at the end."""
        object_body(call.body)  # refuses what no object keeps
        content = self._objects.open(*source)
        with content.file:
            check_generation(call, content.object.generation, *source, parameter="sourceGeneration")
            _source_conditions(call).check(content.object)
            self._objects.refuse_write(target[0])
            self._objects.bucket(target[0])
            current = self._found(target)
            conditions_of(call).check(current)
            check_holds(current)
            yield content

    def _found(self, target: _Name) -> StoredObject | None:
        try:
            return self._objects.get(*target)
        except ApiError as error:
            if error.status != "NOT_FOUND":
                raise
            return None

    def _copied(self, call: Call, content: Content, target: _Name) -> StoredObject:
        with self._uploads.new_path() as path:
            with path.open("xb") as file:
                copy_range(content.file, file, 0, content.object.size)
            return self._put(call, content, path, target)

    def _put(self, call: Call, content: Content, path: Path, target: _Name) -> StoredObject:
        staged = content.staged(path, self._uploads)
        return self._objects.put(*target, staged, _body(call, content), conditions_of(call))

    def _largest_part(self, call: Call, content: Content, target: _Name) -> int:
        """Return the number of bytes to copy in one call."""
        asked, source = call.number(_MOST), content.object
        if asked is not None:
            if asked < _STEP or asked % _STEP:
                raise invalid(f"{_MOST} must be a multiple of {_STEP}.")
            return min(asked, LARGEST_PART)
        places = {self._objects.bucket(bucket).body.get("location") for bucket in (source.bucket, target[0])}
        classes = {body.get("storageClass", "STANDARD") for body in (source.body, _body(call, content))}
        return source.size if len(places) == len(classes) == 1 else LARGEST_PART

    def _next_part(self, call: Call, session: UploadSession, source: _Name, target: _Name) -> JsonObject:
        with self._checked(call, source, target) as content:
            about, size = session.about, content.object.size
            if content.object.generation != about["generation"]:
                raise ApiError("NOT_FOUND", f"No such object: {'/'.join(source)}#{about['generation']}")
            end = min(about["copied"] + self._largest_part(call, content, target), size)
            copy_range(content.file, session.file, about["copied"], end)
            if end < size:
                session.note(about | {"copied": end})
                return _answer(call, end, size)
            answer = _answer(call, size, size, self._put(call, content, session.path, target))
        session.done(answer)
        return answer


def _answer(call: Call, copied: int, size: int, copy: StoredObject | None = None) -> JsonObject:
    """Return the answer of objects.rewrite; `copy` is the whole copy."""
    sizes = {"totalBytesRewritten": str(copied), "objectSize": str(size)}
    answer: JsonObject = {"kind": "storage#rewriteResponse", **sizes, "done": copy is not None}
    return answer if copy is None else answer | {"resource": object_resource(copy, call.request.base)}


def _body(call: Call, content: Content) -> JsonObject:
    return object_body(call.body or content.object.body)


def _fields(call: Call) -> JsonObject:
    """Return the parameters of a rewrite that are the same in each of its calls."""
    own = call.method.parameters.keys() - {_TOKEN}
    return {name: value for name, value in call.parameters.items() if name in own}


def _as_first(call: Call, about: JsonObject) -> Call:
    """Return a later call with all fields of the first; it may leave them out, but not change them.

    Raises:
        ApiError: INVALID_ARGUMENT: A field differs.
    """
    parameters = about["parameters"]
    changed = [name for name, value in _fields(call).items() if parameters.get(name) != value]
    if call.body not in ({}, about["body"]):
        changed.append("the body")
    if changed:
        raise invalid(f"The {_TOKEN} is invalid: {', '.join(changed)} differs from the first request.")
    return dataclasses.replace(call, parameters=call.parameters | parameters, body=about["body"])


def _source_conditions(call: Call) -> Conditions:
    return Conditions(
        generation=call.number("ifSourceGenerationMatch"),
        generation_not=call.number("ifSourceGenerationNotMatch"),
        metageneration=call.number("ifSourceMetagenerationMatch"),
        metageneration_not=call.number("ifSourceMetagenerationNotMatch"),
    )
