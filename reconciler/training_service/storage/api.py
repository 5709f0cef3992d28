"""Cloud Storage's JSON API, as far as staging and trainers need it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import attrgetter

from reconciler.base.listener.message import Response
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.discovery import Form
from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.storage.copies import Copies
from reconciler.training_service.storage.files import ListEntry, Wanted
from reconciler.training_service.storage.globs import Glob
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import (
    ANY,
    Bucket,
    Conditions,
    Content,
    check_holds,
    not_met,
)
from reconciler.training_service.storage.public import LayeredObjects, UnreachableError
from reconciler.training_service.storage.resources import (
    BUCKET_FIELDS,
    bucket_resource,
    composed,
    given_policy,
    object_body,
    object_resource,
    patched,
    policy_resource,
)
from reconciler.training_service.storage.upload_sessions import Uploads
from reconciler.training_service.storage.uploads import (
    StorageUploads,
    check_generation,
    chunks,
    conditions_of,
    download,
)

LARGEST_PAGE = 1000

_AFTER_ALL = "\U0010ffff"
# Parameters that are refused, because ignoring them would change the answer's meaning or leave an object less
# protected than its owner asked for.
_NOT_SERVED = (
    *("softDeleted", "filter", "restoreToken", "kmsKeyName", "destinationKmsKeyName"),
    "enableObjectRetention",
)
_ACLS = ("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl")
_FOR_OTHERS = ("authenticatedRead", "publicRead", "publicReadWrite")
# https://cloud.google.com/storage/docs/encryption/customer-supplied-keys
_CUSTOMER_KEYS = ("x-goog-encryption-", "x-goog-copy-source-encryption-")
_MAX_COMPONENTS = 32  # https://cloud.google.com/storage/quotas#objects
_PERMISSION = re.compile(r"storage\.(?:buckets|folders|managedFolders|multipartUploads|objects)\.\w+")


class StorageApi:
    """Handlers of buckets and objects."""

    def __init__(self, objects: LayeredObjects, uploads: Uploads, pages: Pages) -> None:
        self._objects = objects
        self._uploads = uploads
        self._pages = pages
        self._incoming = StorageUploads(objects, uploads)
        self._copies = Copies(objects, uploads, pages)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by method id."""
        handlers: dict[str, Handler] = {
            "storage.buckets.get": self._get_bucket,
            "storage.buckets.insert": self._insert_bucket,
            "storage.buckets.list": self._list_buckets,
            "storage.buckets.delete": self._delete_bucket,
            "storage.buckets.getStorageLayout": self._layout,
            "storage.buckets.getIamPolicy": self._get_policy,
            "storage.buckets.setIamPolicy": self._set_policy,
            "storage.buckets.testIamPermissions": self._test_permissions,
            "storage.managedFolders.list": self._list_managed_folders,
            "storage.objects.get": self._get,
            "storage.objects.insert": self._insert,
            "storage.objects.list": self._list,
            "storage.objects.delete": self._delete,
            "storage.objects.patch": self._patch,
            "storage.objects.copy": self._copy,
            "storage.objects.rewrite": self._rewrite,
            "storage.objects.move": self._move,
            "storage.objects.compose": self._compose,
        }
        return {method: partial(_unless_unserved, handler) for method, handler in handlers.items()}

    def _get_bucket(self, call: Call) -> JsonObject:
        name = _bucket(call)
        bucket = self._objects.bucket(name)
        return bucket_resource(bucket, call.request.base)

    def _insert_bucket(self, call: Call) -> JsonObject:
        name = call.body.get("name", "")
        given = {key for key, value in call.body.items() if value}  # Google's C++ client sends defaults too
        unknown = sorted(given - {"name", "kind", *BUCKET_FIELDS})
        if unknown:
            raise ApiError("UNIMPLEMENTED", f"This service keeps no {', '.join(unknown)} of a bucket.")
        call.access.check_bucket(name)
        body = {key: value for key, value in call.body.items() if key in BUCKET_FIELDS}
        return bucket_resource(self._objects.create_bucket(name, body), call.request.base)

    def _list_buckets(self, call: Call) -> JsonObject:
        query = [call.method.id, call.text("prefix"), call.text("project")]
        after = str(self._pages.position(call.text("pageToken"), query)) if call.text("pageToken") else ""
        names = [
            name
            for name in self._objects.buckets()
            if name > after and name.startswith(call.text("prefix")) and call.access.bucket(name)
        ]
        size = _page_size(call)
        buckets = [self._objects.bucket(name) for name in names[:size]]
        answer: JsonObject = {"kind": "storage#buckets"}
        if buckets:
            answer["items"] = [bucket_resource(bucket, call.request.base) for bucket in buckets]
        if len(names) > size:
            answer["nextPageToken"] = self._pages.token(names[size - 1], query)
        return answer

    def _delete_bucket(self, call: Call) -> Response:
        self._objects.delete_bucket(_bucket(call), lambda bucket: _check_metageneration(call, bucket))
        return Response(204)

    def _layout(self, call: Call) -> JsonObject:
        resource = bucket_resource(self._objects.bucket(_bucket(call)), call.request.base)
        flat = {"hierarchicalNamespace": {"enabled": False}}
        return {
            "kind": "storage#storageLayout",
            "bucket": resource["name"],
            "location": resource["location"],
            **flat,
        }

    def _list_managed_folders(self, call: Call) -> JsonObject:
        self._objects.bucket(_bucket(call))
        return {
            "kind": "storage#managedFolders"
        }  # there are none; gcloud lists them before it deletes a bucket

    def _get_policy(self, call: Call) -> JsonObject:
        policy = policy_resource(self._objects.bucket(_bucket(call)))
        if policy["version"] == 3 and call.number("optionsRequestedPolicyVersion") != 3:
            raise invalid("The policy has conditions: request it with optionsRequestedPolicyVersion=3.")
        return policy

    def _set_policy(self, call: Call) -> JsonObject:
        changed = self._objects.set_policy(_bucket(call), lambda bucket: given_policy(bucket, call.body))
        return policy_resource(changed)

    def _test_permissions(self, call: Call) -> JsonObject:
        self._objects.bucket(_bucket(call))
        asked = [value for name, value in call.request.query if name == "permissions"]
        unknown = [permission for permission in asked if not _PERMISSION.fullmatch(permission)]
        if not asked:
            raise invalid("Required parameter: permissions")
        if unknown:
            raise invalid(f"There is no permission {unknown[0]!r} on a bucket.")
        return {"kind": "storage#testIamPermissionsResponse", "permissions": asked}

    def _get(self, call: Call) -> Response | JsonObject:
        bucket, name = _object(call)
        if call.form is Form.DOWNLOAD or call.text("alt") == "media":
            return self._download(call, bucket, name)
        stored = self._objects.get(bucket, name)
        check_generation(call, stored.generation, bucket, name)
        conditions_of(call).check(stored, reading=True)
        return object_resource(stored, call.request.base)

    def _download(self, call: Call, bucket: str, name: str) -> Response:
        content = self._objects.open(bucket, name)
        try:
            check_generation(call, content.object.generation, bucket, name)
            conditions_of(call).check(content.object, reading=True)
            return download(content, call.request.headers.get("range", ""))
        except BaseException:  # the response closes the file only if it is returned
            content.file.close()
            raise

    def _insert(self, call: Call) -> Response | JsonObject:
        if call.form is not Form.UPLOAD:
            raise invalid("Objects are inserted on the upload path, with their content.")
        self._objects.refuse_write(call.path["bucket"])  # before a resumable upload begins
        return self._incoming.answer(call)

    def _list(self, call: Call) -> JsonObject:
        bucket, query = _bucket(call), _Listing.of(call)
        token = call.text("pageToken")
        start = str(self._pages.position(token, query.asked)) if token else ""
        size = _page_size(call)
        start = max(start, query.start)
        if self._objects.public.has(bucket):
            both = self._listed_with_public(call, bucket, query, start, size + 1)
            return self._page(call, bucket, query, both, size)
        page = list(islice(self._listed(call, bucket, query, start), size + 1))
        return self._page(call, bucket, query, page, size)

    def _listed_with_public(
        self, call: Call, bucket: str, query: _Listing, start: str, most: int
    ) -> Sequence[ListEntry | StoredObject]:
        """Return the first entries of a public bucket; the home's come first among those of a name."""
        local = list(islice(self._listed(call, bucket, query, start), most))
        remote = (
            listed if isinstance(listed, StoredObject) else ListEntry(listed, None)
            for listed in self._objects.public.listed(bucket, query.parameters(most), _offset(start))
            if call.access.object(bucket, listed if isinstance(listed, str) else listed.name)
        )
        try:
            groups = groupby(merge(local, remote, key=attrgetter("name")), attrgetter("name"))
            return [next(held) for _, held in islice(groups, most)]
        except UnreachableError as error:
            if not local:
                self._objects.public.refuse_unlisted(bucket, error)
            return local

    def _page(
        self, call: Call, bucket: str, query: _Listing, page: Sequence[ListEntry | StoredObject], size: int
    ) -> JsonObject:
        entries = page[:size]
        prefixes = [entry.name for entry in entries if query.is_prefix(entry)]
        following = ""
        if len(page) > size:
            last = page[size - 1]
            after = last.name + (_AFTER_ALL if query.is_prefix(last) else "\0")
            following = self._pages.token(after, query.asked)
        others = {"kind": "storage#objects", "prefixes": prefixes, "nextPageToken": following}
        files = (entry for entry in entries if isinstance(entry, ListEntry))
        remote = (entry for entry in entries if isinstance(entry, StoredObject))
        objects = merge(self._objects.described(bucket, files), remote, key=attrgetter("name"))
        items = [object_resource(stored, call.request.base) for stored in objects]
        return {name: value for name, value in {**others, "items": items}.items() if value}

    def _listed(self, call: Call, bucket: str, query: _Listing, start: str) -> Iterator[ListEntry]:
        wanted = Wanted(query.prefix, start, fold=query.delimiter == "/")
        if not (query.end or query.delimiter or query.glob or call.access.limited):
            yield from self._objects.walk(bucket, wanted)
            return
        seen = ""
        for entry in self._objects.walk(bucket, wanted):
            if query.end and entry.name >= query.end:
                return
            folded = query.folded(entry)
            if folded.status is None and folded.name == seen:
                continue
            if call.access.object(bucket, folded.name) and query.selects(folded):
                yield folded
                seen = folded.name

    def _delete(self, call: Call) -> Response:
        bucket, name = _object(call)
        self._objects.delete(bucket, name, call.number("generation"), conditions_of(call))
        return Response(204)

    def _patch(self, call: Call) -> JsonObject:
        bucket, name = _object(call)
        stored = self._objects.patch(bucket, name, lambda body: patched(body, call.body), conditions_of(call))
        return object_resource(stored, call.request.base)

    def _copy(self, call: Call) -> JsonObject:
        _, copy = self._copies.copied(call, _object(call, "sourceBucket", "sourceObject"), _target(call))
        return object_resource(copy, call.request.base)

    def _rewrite(self, call: Call) -> JsonObject:
        return self._copies.rewritten(call, _object(call, "sourceBucket", "sourceObject"), _target(call))

    def _move(self, call: Call) -> JsonObject:
        source, target = _object(call, name="sourceObject"), _object(call, name="destinationObject")
        if source != target:
            check_holds(self._objects.get(*source))  # before there is a copy
        original, copy = self._copies.copied(call, source, target)
        if source != target:  # otherwise the object would be lost
            # The original's generation: a newer object of that name must stay.
            self._objects.delete(*source, original.generation, ANY)
        return object_resource(copy, call.request.base)

    def _compose(self, call: Call) -> JsonObject:
        bucket, name = _target(call)
        sources = call.body.get("sourceObjects", [])
        if not sources:
            raise invalid("You must provide at least one source component.")
        if len(sources) > _MAX_COMPONENTS:
            text = f"The number of source components provided ({len(sources)}) exceeds the maximum"
            raise invalid(f"{text} ({_MAX_COMPONENTS}).")
        with ExitStack() as stack:
            contents = [self._component(call, bucket, source, stack) for source in sources]
            for content in contents if call.body.get("deleteSourceObjects") else ():
                check_holds(content.object)
            body = composed(
                object_body(call.body.get("destination", {})), [content.object for content in contents]
            )
            pieces = chain.from_iterable(chunks(content.file) for content in contents)
            with self._uploads.staged(pieces) as staged:
                stored = self._objects.put(bucket, name, staged, body, conditions_of(call))
        if call.body.get("deleteSourceObjects"):
            generations = {content.object.name: content.object.generation for content in contents}
            for source in generations.keys() - {name}:
                self._objects.delete(bucket, source, generations[source], ANY)
        return object_resource(stored, call.request.base)

    def _component(self, call: Call, bucket: str, source: JsonObject, stack: ExitStack) -> Content:
        name = source.get("name", "")
        if not name:
            raise invalid("Each source component must have a name.")
        call.access.check_object(bucket, name)
        content = self._objects.open(bucket, name)
        stack.enter_context(content.file)
        wanted = source.get("generation")
        if wanted is not None and int(wanted) != content.object.generation:
            raise ApiError("NOT_FOUND", f"No such object: {bucket}/{name}#{wanted}")
        condition = source.get("objectPreconditions", {}).get("ifGenerationMatch")
        Conditions(generation=None if condition is None else int(condition)).check(content.object)
        return content


@dataclass(frozen=True, slots=True)
class _Listing:
    """Parameters of a list call; page tokens are bound to `asked`.

    Attributes:
        glob: The pattern of the names and prefixes to list; None for all.
        trailing: Whether an object whose name ends with its only delimiter is also listed as an object.
    """

    prefix: str
    delimiter: str
    start: str
    end: str
    trailing: bool
    glob: Glob | None
    asked: tuple[str, ...]

    @classmethod
    def of(cls, call: Call) -> _Listing:
        prefix, delimiter = call.text("prefix"), call.text("delimiter")
        start, end = call.text("startOffset"), call.text("endOffset")
        trailing = bool(call.parameters.get("includeTrailingDelimiter"))
        pattern = call.text("matchGlob")
        glob = Glob(pattern) if pattern else None
        asked = (call.method.id, call.path["bucket"], prefix, delimiter, start, end, str(trailing), pattern)
        return cls(prefix, delimiter, start, end, trailing, glob, asked)

    def selects(self, folded: ListEntry) -> bool:
        """Return whether an entry's name matches the pattern."""
        return self.glob is None or self.glob.matches(folded.name)

    def folded(self, entry: ListEntry) -> ListEntry:
        """Return the file, or the common prefix up to the delimiter of all names that continue after it."""
        prefix = self._prefix_of(entry)
        return entry if not prefix or (self.trailing and prefix == entry.name) else ListEntry(prefix, None)

    def is_prefix(self, folded: ListEntry | StoredObject) -> bool:
        """Return whether an entry is listed as a prefix; it may be listed as an object too."""
        only = isinstance(folded, ListEntry) and folded.status is None
        return only or self._prefix_of(folded) == folded.name

    def parameters(self, most: int) -> dict[str, str]:
        """Return the parameters with which Google lists the same names, `most` of them."""
        return {
            "prefix": self.prefix,
            "delimiter": self.delimiter,
            "endOffset": self.end,
            "includeTrailingDelimiter": "true" if self.trailing else "",
            "matchGlob": self.asked[-1],
            "maxResults": str(min(most, LARGEST_PAGE)),
        }

    def _prefix_of(self, entry: ListEntry | StoredObject) -> str:
        index = entry.name.find(self.delimiter, len(self.prefix)) if self.delimiter else -1
        return "" if index < 0 else entry.name[: index + len(self.delimiter)]


def _offset(start: str) -> str:
    """Return a start that Google takes: the first text after all that begin with a prefix."""
    if not start.endswith(_AFTER_ALL):
        return start
    prefix = start.removesuffix(_AFTER_ALL)
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _bucket(call: Call) -> str:
    call.access.check_bucket(call.path["bucket"])
    return call.path["bucket"]


def _object(call: Call, bucket: str = "bucket", name: str = "object") -> tuple[str, str]:
    target = call.path[bucket], call.path[name]
    call.access.check_object(*target)
    return target


def _target(call: Call) -> tuple[str, str]:
    return _object(call, "destinationBucket", "destinationObject")


def _check_metageneration(call: Call, bucket: Bucket) -> None:
    wanted, unwanted = call.number("ifMetagenerationMatch"), call.number("ifMetagenerationNotMatch")
    if wanted not in (None, bucket.metageneration) or unwanted == bucket.metageneration:
        raise not_met(412)


def _unless_unserved(handler: Handler, call: Call) -> Response | JsonObject:
    for parameter in _NOT_SERVED:
        if call.parameters.get(parameter):
            raise ApiError("UNIMPLEMENTED", f"This service doesn't know {parameter}.")
    for parameter in _ACLS:
        if call.text(parameter) in _FOR_OTHERS:
            message = f"This service gives nothing to others: leave out {parameter}={call.text(parameter)}."
            raise ApiError("UNIMPLEMENTED", message)
    key = next((name for name in call.request.headers if name.startswith(_CUSTOMER_KEYS)), None)
    if key is not None:
        message = f"This service encrypts no objects: send the request without a key of your own ({key})."
        raise ApiError("UNIMPLEMENTED", message)
    return handler(call)


def _page_size(call: Call) -> int:
    size = call.number("maxResults") or 0
    if size < 0:
        raise invalid("maxResults must not be negative.")
    return min(size or LARGEST_PAGE, LARGEST_PAGE)
