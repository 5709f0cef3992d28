"""Vertex AI: projects.locations.models.

A model is a record of where its files are: nothing is served from it, and no file of it changes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cmp_to_key, partial
from typing import NamedTuple

from reconciler.base.listener.message import Response
from reconciler.training_service.apis.training import place_of
from reconciler.training_service.apis.validation import (
    alias_mistakes,
    label_mistakes,
    registration_mistakes,
    resource_mistakes,
)
from reconciler.training_service.apis.vertex_answers import deletion, refused, upload
from reconciler.training_service.http import field_masks, filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.http.message import ApiError, invalid, not_found
from reconciler.training_service.http.paging import Pages, page_size
from reconciler.training_service.state.database import rfc3339
from reconciler.training_service.state.models import (
    DEFAULT,
    OF_MODEL,
    OF_VERSION,
    VERSION_ID,
    ModelExistsError,
    ModelName,
    ModelNotFoundError,
    ModelStore,
    ModelVersion,
    OnlyVersionError,
    UnreadableModelError,
)
from reconciler.training_service.state.records import Json, JsonObject, number_of
from reconciler.training_service.tuning.checks import NOT_SET, Mistake

_DEFAULT_PAGE, _LARGEST_PAGE = 100, 1000


class _By(NamedTuple):
    """A value that a list is ordered by."""

    value: Callable[[ModelVersion], Json]
    descending: bool


_NEWEST_FIRST = (_By(lambda version: version.id, True), _By(lambda version: version.version_id, True))
_Orders = Mapping[str, Callable[[ModelVersion], Json]]
_MODEL_ORDERS: _Orders = {
    "display_name": lambda version: str(version.body.get("displayName", "")),
    "create_time": lambda version: version.create_time,
    "update_time": lambda version: version.update_time,
}
_VERSION_ORDERS: _Orders = {
    "create_time": lambda version: version.version_create_time,
    "update_time": lambda version: version.version_update_time,
}


class Models:
    """Handlers of projects.locations.models."""

    def __init__(self, store: ModelStore, pages: Pages) -> None:
        self._store = store
        self._pages = pages

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by method id."""
        answers = {
            "upload": self._upload,
            "get": self._get,
            "list": self._list,
            "listVersions": self._list_versions,
            "patch": self._patch,
            "mergeVersionAliases": self._merge_aliases,
            "delete": self._delete,
            "deleteVersion": self._delete_version,
        }
        prefix = "aiplatform.projects.locations.models"
        return {f"{prefix}.{name}": partial(_told, answer) for name, answer in answers.items()}

    def _upload(self, call: Call) -> JsonObject:
        if mistakes := list(registration_mistakes(call.body, "model")):
            raise refused(mistakes)
        project, location = place_of(call)
        with self._store.database.writing() as connection:
            version = self._store.register(
                connection,
                project,
                location,
                call.body["model"],
                model_id=call.body.get("modelId", ""),
                parent=call.body.get("parentModel", ""),
            )
        return upload(version.name, version.version_id, version.version_create_time)

    def _get(self, call: Call) -> JsonObject:
        name = _name(call)
        return model_resource(self._store.get(name), versioned=bool(name.version))

    def _list(self, call: Call) -> JsonObject:
        """Return one page of the models' default versions."""
        versions = self._store.defaults(*place_of(call))
        return self._page(call, versions, _MODEL_ORDERS, _filter_field, model_resource)

    def _list_versions(self, call: Call) -> JsonObject:
        """Return one page of a model's versions."""
        versions = self._store.versions(_name(call))
        resource = partial(model_resource, versioned=True)
        return self._page(call, versions, _VERSION_ORDERS, _label_field, resource)

    def _page(
        self,
        call: Call,
        versions: Iterable[ModelVersion],
        orders: _Orders,
        field: Callable[[tuple[str, ...]], filters.Field[ModelVersion] | None],
        resource: Callable[[ModelVersion], JsonObject],
    ) -> JsonObject:
        """Return the page of a list that the call asks for: newest first, unless it names another order."""
        selects = filters.compile_filter(filters.parse(call.text("filter")), field)
        order = [*_order(call.text("orderBy"), orders), *_NEWEST_FIRST]
        size = page_size(call.number("pageSize"), "The page size", _DEFAULT_PAGE, _LARGEST_PAGE)
        mask = field_masks.mask_of_paths(call.text("readMask")) if call.text("readMask") else {}
        query = [call.method.id, dict(call.path), call.text("filter"), call.text("orderBy")]
        token, compare = call.text("pageToken"), partial(_compare, order)
        end = self._pages.position(token, query) if token else []
        rows = [([by.value(version) for by in order], version) for version in versions if selects(version)]
        # A page begins behind the position that the last one ended at: what was there may be gone.
        rows = [row for row in rows if not end or compare(row[0], end) > 0]
        rows.sort(key=lambda row: cmp_to_key(compare)(row[0]))
        page = rows[:size]
        items = [field_masks.masked(resource(version), mask) for _, version in page]
        following = self._pages.token(page[-1][0], query) if len(rows) > size else ""
        answer: JsonObject = {"models": items, "nextPageToken": following}
        return {name: value for name, value in answer.items() if value}

    def _patch(self, call: Call) -> JsonObject:
        name = _name(call)
        mask = field_masks.mask_of_paths(call.text("updateMask"))
        if mistakes := list(_mask_mistakes(mask)):
            raise refused(mistakes)
        if others := [field for field in mask if field not in (OF_VERSION if name.version else OF_MODEL)]:
            owner = name._replace(version="" if name.version else "VERSION")
            text = f"{', '.join(map(snake, others))}: not of {name}, but of {owner}. Patch that."
            raise ApiError("FAILED_PRECONDITION", text)
        changes = {field: call.body.get(field) for field in mask}
        check = resource_mistakes if "displayName" in mask else label_mistakes
        if mistakes := [*check({field: value for field, value in changes.items() if value})]:
            raise refused([(f"model.{field}", text) for field, text in mistakes])
        changed = self._store.update(name, changes, only_etag=call.body.get("etag", ""))
        if changed is None:
            raise ApiError("ABORTED", "The etag is not the model's: somebody else has changed it meanwhile.")
        return model_resource(changed, versioned=bool(name.version))

    def _merge_aliases(self, call: Call) -> JsonObject:
        name = _version_name(call)
        given = call.body.get("versionAliases", [])
        removed = [alias.removeprefix("-") for alias in given if alias.startswith("-")]
        added = [alias for alias in given if not alias.startswith("-")]
        mistakes = list(alias_mistakes([alias.removeprefix("-") for alias in given], "version_aliases"))
        if not given:
            mistakes.append(("version_aliases", NOT_SET))
        if DEFAULT in removed and DEFAULT not in added:
            text = "One version of a model has the alias default: give it to another version instead."
            mistakes.append(("version_aliases", text))
        if mistakes:
            raise refused(mistakes)
        return model_resource(self._store.merge_aliases(name, added, removed), versioned=True)

    def _delete(self, call: Call) -> JsonObject:
        name = _name(call)
        if name.version:
            model = name._replace(version="")
            raise invalid(f"{name} is a version: delete the whole model as {model}, or call deleteVersion.")
        self._store.delete(name)
        return self._deletion(name)

    def _delete_version(self, call: Call) -> JsonObject:
        name = _version_name(call)
        try:
            self._store.delete_version(name)
        except OnlyVersionError:
            text = f"{name} is the only version of its model: delete the model instead."
            raise ApiError("FAILED_PRECONDITION", text) from None
        return self._deletion(name)

    def _deletion(self, name: ModelName) -> JsonObject:
        location = f"projects/{number_of(name.project)}/locations/{name.location}"
        return deletion(location, rfc3339(self._store.clock()))


def model_resource(version: ModelVersion, *, versioned: bool = False) -> JsonObject:
    """Return a version in the API's form; `versioned` puts its id into the name: `models/ID@VERSION`.

    The SDK needs that in the answer to a request that names a version: it patches the version by this name.
    It says that the model can neither be deployed nor exported: nothing here does that.
    """
    return {
        **version.body,
        "name": f"{version.name}@{version.version_id}" if versioned else version.name,
        "versionId": str(version.version_id),
        **({"versionAliases": [*version.aliases]} if version.aliases else {}),
        "createTime": version.create_time,
        "updateTime": version.update_time,
        "versionCreateTime": version.version_create_time,
        "versionUpdateTime": version.version_update_time,
        **({"trainingPipeline": version.pipeline} if version.pipeline else {}),
        "modelSourceInfo": {"sourceType": "CUSTOM"},
        "etag": version.etag,
    }


def _told(answer: Handler, call: Call) -> Response | JsonObject:
    """Return the answer to a call; raise the store's refusals as the API's errors."""
    try:
        return answer(call)
    except ModelNotFoundError as error:
        raise not_found(f"The resource {error} is not found.") from None
    except ModelExistsError as error:
        text = f"A model with the id {error} already exists: write it as parentModel to add a version to it."
        raise ApiError("ALREADY_EXISTS", text) from None
    except UnreadableModelError as error:
        name, columns = error.args
        text = f"The record of {name} can't be read in the service's database: {columns}."
        text += " Restore state.db from a copy, or delete it."
        raise ApiError("FAILED_PRECONDITION", text) from None


def _name(call: Call) -> ModelName:
    return ModelName.of(*place_of(call), call.path["modelsId"])


def _version_name(call: Call) -> ModelName:
    """Return the name of a call for one version; raise INVALID_ARGUMENT unless it has the version's id."""
    name = _name(call)
    if not VERSION_ID.fullmatch(name.version):
        model = name._replace(version="")
        raise invalid(f"{name} names no version: write its id, as in {model}@1. An alias isn't enough.")
    return name


def _mask_mistakes(mask: field_masks.Mask) -> Iterator[Mistake]:
    fields = tuple(dict.fromkeys((*OF_MODEL, *OF_VERSION)))
    for field, below in mask.items():
        if field not in fields or below:
            names = ", ".join(map(snake, fields))
            yield (
                "update_mask",
                f"{snake(field) or 'An empty mask'}: the mask may hold {names}, each as a whole.",
            )


def _filter_field(path: tuple[str, ...]) -> filters.Field[ModelVersion] | None:
    match path:
        case ("model",):
            return filters.text_field(lambda version: version.model_id, "=", "!=")
        case ("display_name" | "displayName",):
            return filters.text_field(lambda version: str(version.body.get("displayName", "")), "=", "!=")
    return _label_field(path)


def _label_field(path: tuple[str, ...]) -> filters.Field[ModelVersion] | None:
    match path:
        case ("labels", *key) if key:
            return filters.map_field(_labels, ".".join(key))
        case ("labels",):
            return filters.key_field(_labels)
    return None


def _labels(version: ModelVersion) -> Mapping[str, str]:
    labels: Mapping[str, str] = version.body.get("labels", {})
    return labels


def _order(text: str, orders: _Orders) -> Iterator[_By]:
    """Yield what an `orderBy` orders by; raise INVALID_ARGUMENT if it names something else."""
    for part in text.split(",") if text.strip() else ():
        match part.split():
            case [name, *direction] if snake(name) in orders and direction in ([], ["asc"], ["desc"]):
                yield _By(orders[snake(name)], descending=direction == ["desc"])
            case _:
                known = ", ".join(orders)
                raise invalid(f"Invalid orderBy: {part.strip()!r} is none of {known}, with or without desc.")


def _compare(order: Sequence[_By], one: Sequence[Json], other: Sequence[Json]) -> int:
    """Return whether a position in a list is before (-1), at (0) or after another one (1)."""
    for by, value, second in zip(order, one, other, strict=True):
        if value != second:
            return 1 if (value > second) is not by.descending else -1
    return 0
