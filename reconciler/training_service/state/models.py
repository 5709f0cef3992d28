"""Models with their versions and aliases.

An alias names one version of its model. One version of each model has the alias `default`: the first, until
another one gets it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from reconciler.training_service.state.database import Database, new_number, rfc3339
from reconciler.training_service.state.records import JsonObject, number_of, readable_time
from reconciler.training_service.state.rows import body_of

DEFAULT = "default"
"""The alias of the version that a model's name without a version means."""

VERSION_ID = re.compile(r"[1-9][0-9]{0,17}")
"""A version's id, which no alias looks like."""

OF_MODEL = ("displayName", "description", "labels")
"""The fields that a patch of a model changes; its versions share them."""

OF_VERSION = ("versionDescription", "labels")
"""The fields that a patch of one version changes."""

RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/models/([^/]+)")
"""The resource name of a model, or of one of its versions."""

_NOT_KEPT = ("name", "versionAliases", "etag")  # the service tells them by other columns
_TIMES = ("create_time", "update_time", "version_create_time", "version_update_time")


class ModelNotFoundError(Exception):
    """Refusal of the name of a model or version that doesn't exist; the argument is the name."""


class ModelExistsError(Exception):
    """Refusal of a model id that is already used; the argument is the id."""


class UnreadableModelError(Exception):
    """Error for a record that can't be read: the model's or version's name, and the names of the columns."""


class OnlyVersionError(Exception):
    """Refusal to delete the only version of a model."""


class ModelName(NamedTuple):
    """Name of a model, or of one of its versions.

    Attributes:
        project: The project's id or number.
        version: The id or an alias of the version; "" for the model, and so for its default version.
    """

    project: str
    location: str
    model_id: str
    version: str = ""

    @classmethod
    def of(cls, project: str, location: str, model: str) -> ModelName:
        """Return the name for the last part of a resource name: ID, ID@VERSION, ID@ALIAS or ID@-, as ID."""
        model_id, _, version = model.partition("@")
        return cls(project, location, model_id, "" if version == "-" else version)

    def __str__(self) -> str:
        """Return the resource name."""
        version = f"@{self.version}" if self.version else ""
        return f"projects/{self.project}/locations/{self.location}/models/{self.model_id}{version}"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model.

    Attributes:
        id: The number of the model's row; grows with time and is never reused.
        project: The project as in the request that made the model: an id, or a number.
        version_id: The version's number, from 1; never reused in its model.
        body: The API's Model as the client gave it, in camelCase, without name, etag, aliases and output-only
            fields. Its name, description and labels are the model's; it has the version's own labels too.
        aliases: The version's aliases, sorted.
        create_time, update_time: The model's times, RFC 3339 in UTC.
        version_create_time, version_update_time: The version's times.
        pipeline: The resource name of the training pipeline that made the version, "" for none.
    """

    id: int
    project: str
    location: str
    model_id: str
    version_id: int
    body: JsonObject
    aliases: tuple[str, ...]
    create_time: str
    update_time: str
    version_create_time: str
    version_update_time: str
    pipeline: str

    @property
    def name(self) -> str:
        """Return the model's resource name, with the project's number."""
        return str(ModelName(number_of(self.project), self.location, self.model_id))

    @property
    def etag(self) -> str:
        """Return the etag: it changes with all that a patch can change, and with nothing else."""
        digest = hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).digest()
        return base64.b64encode(digest[:9]).decode()


class ModelStore:
    """Thread-safe store of models.

    Attributes:
        database: The database, which the service's jobs are in too.
        clock: Returns the time of writes.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self.database = database
        self.clock = clock

    def register(
        self,
        connection: sqlite3.Connection,
        project: str,
        location: str,
        body: JsonObject,
        *,
        model_id: str = "",
        parent: str = "",
        pipeline: str = "",
    ) -> ModelVersion:
        """Add a version within the caller's transaction (`Database.writing`), and return it.

        Args:
            body: The API's Model as the client gave it. The name and the description of a further version are
                the model's, whatever the body has; its labels are its own.
            model_id: The id of a new model; 19 digits if "".
            parent: The resource name, with or without a version, of the model that gets a further version;
                `model_id` is ignored then. "" for a new model.
            pipeline: The resource name of the training pipeline that makes the version.

        Raises:
            ModelNotFoundError: There is no such parent in this project and location.
            ModelExistsError: The model id is already used.
            UnreadableModelError: The parent's record can't be read.
        """
        at = rfc3339(self.clock())
        own = {name: value for name, value in body.items() if name not in (*OF_MODEL, *_NOT_KEPT)}
        aliases = body.get("versionAliases", [])
        if parent:
            model = self._parent(connection, project, location, parent)
            id, number = model["id"], model["versions"] + 1
            own |= {"labels": body["labels"]} if "labels" in body else {}
            connection.execute(
                "UPDATE models SET versions = ?, update_time = ? WHERE id = ?", (number, at, id)
            )
        else:
            shared = {name: body[name] for name in OF_MODEL if name in body}
            name = ModelName(project, location, model_id or new_number())
            id, number, aliases = _insert(connection, name, shared, at), 1, [*aliases, DEFAULT]
        connection.execute(
            "INSERT INTO model_versions (model, version_id, body, pipeline, create_time, update_time)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (id, number, json.dumps(own), pipeline, at, at),
        )
        _give(connection, id, number, aliases)
        return _version(connection, id, number)

    def check_new(self, project: str, location: str, *, model_id: str = "", parent: str = "") -> None:
        """Raise what `register` would raise for these arguments; nothing is added."""
        with self.database.reading() as connection:
            if parent:
                self._parent(connection, project, location, parent)
            elif model_id:
                _check_unused(connection, ModelName(project, location, model_id))

    def _parent(
        self, connection: sqlite3.Connection, project: str, location: str, parent: str
    ) -> sqlite3.Row:
        parts = RESOURCE.fullmatch(parent)
        name = ModelName.of(*parts.groups()) if parts else None
        if name is None or (number_of(name.project), name.location) != (number_of(project), location):
            raise ModelNotFoundError(parent)
        return _model(connection, name)

    def get(self, name: ModelName) -> ModelVersion:
        """Return a version.

        Raises:
            ModelNotFoundError: There is no such model, or no such version of it.
            UnreadableModelError: The record can't be read.
        """
        with self.database.reading() as connection:
            return _named(connection, name)

    def defaults(self, project: str, location: str) -> list[ModelVersion]:
        """Return the default version of each model, the newest model first.

        Raises:
            UnreadableModelError: The record of one can't be read: a list without it would be incomplete.
        """
        where = "project_number = ? AND location = ? AND version_id = (SELECT version_id FROM model_aliases"
        where += f" WHERE model = models.id AND alias = '{DEFAULT}') ORDER BY models.id DESC"
        with self.database.reading() as connection:
            return [*_select(connection, where, number_of(project), location)]

    def versions(self, name: ModelName) -> list[ModelVersion]:
        """Return all versions of a model, the newest first.

        Raises:
            ModelNotFoundError: There is no such model, or no such version of it.
            UnreadableModelError: The record of one can't be read.
        """
        with self.database.reading() as connection:
            id, _ = _found(connection, name)
            return [*_select(connection, "models.id = ? ORDER BY version_id DESC", id)]

    def update(self, name: ModelName, changes: JsonObject, *, only_etag: str) -> ModelVersion | None:
        """Change fields of a model (`OF_MODEL`), or of one version if the name has one (`OF_VERSION`).

        Args:
            changes: The new values; an empty one removes the field.

        Returns:
            The changed version, or the model's default version; None unless its etag was `only_etag` (or that
            is "").

        Raises:
            ModelNotFoundError: There is no such model, or no such version of it.
            UnreadableModelError: The record can't be read.
        """
        with self.database.writing() as connection:
            before = _named(connection, name)
            if only_etag not in ("", before.etag):
                return None
            id, number = _found(connection, name)
            table, key = (
                ("model_versions", "model = ? AND version_id = ?") if name.version else ("models", "id = ?")
            )
            values = (id, number) if name.version else (id,)
            # The statements contain only the names above.
            row = connection.execute(f"SELECT body FROM {table} WHERE {key}", values).fetchone()  # noqa: S608
            body = body_of(row["body"]) | changes
            for field in (field for field, value in changes.items() if not value):
                del body[field]
            at = rfc3339(self.clock())
            connection.execute(
                f"UPDATE {table} SET body = ?, update_time = ? WHERE {key}",  # noqa: S608
                (json.dumps(body), at, *values),
            )
            connection.execute("UPDATE models SET update_time = ? WHERE id = ?", (at, id))
            return _version(connection, id, number)

    def merge_aliases(self, name: ModelName, added: Iterable[str], removed: Iterable[str]) -> ModelVersion:
        """Give a version aliases, which other versions lose, and take others from it; return the version.

        An alias that is both added and removed stays as it is; so does `default` unless it is added.

        Raises:
            ModelNotFoundError: There is no such model, or no such version of it.
            UnreadableModelError: The record can't be read.
        """
        given, taken = {*added}, {*removed}
        with self.database.writing() as connection:
            id, number = _found(connection, name)
            _give(connection, id, number, given - taken)
            connection.executemany(
                "DELETE FROM model_aliases WHERE model = ? AND version_id = ? AND alias = ?",
                [(id, number, alias) for alias in taken - given - {DEFAULT}],
            )
            at = rfc3339(self.clock())
            connection.execute(
                "UPDATE model_versions SET update_time = ? WHERE model = ? AND version_id = ?",
                (at, id, number),
            )
            connection.execute("UPDATE models SET update_time = ? WHERE id = ?", (at, id))
            return _version(connection, id, number)

    def delete(self, name: ModelName) -> None:
        """Delete a model with all its versions.

        Raises:
            ModelNotFoundError: There is no such model.
        """
        with self.database.writing() as connection:
            connection.execute("DELETE FROM models WHERE id = ?", (_model(connection, name)["id"],))

    def delete_version(self, name: ModelName) -> None:
        """Delete a version; if it is the default one, the newest of the others becomes it.

        Raises:
            ModelNotFoundError: There is no such model, or no such version of it.
            OnlyVersionError: The model has no other version.
        """
        with self.database.writing() as connection:
            id, number = _found(connection, name)
            others = "SELECT max(version_id) FROM model_versions WHERE model = ? AND version_id <> ?"
            (newest,) = connection.execute(others, (id, number)).fetchone()
            if newest is None:
                raise OnlyVersionError
            of_default = (
                "UPDATE model_aliases SET version_id = ? WHERE model = ? AND version_id = ? AND alias = ?"
            )
            connection.execute(of_default, (newest, id, number, DEFAULT))
            connection.execute("DELETE FROM model_versions WHERE model = ? AND version_id = ?", (id, number))
            at = rfc3339(self.clock())
            connection.execute("UPDATE models SET update_time = ? WHERE id = ?", (at, id))


def _insert(connection: sqlite3.Connection, name: ModelName, body: JsonObject, at: str) -> int:
    """Add a model with one version to come; return its row's number."""
    _check_unused(connection, name)
    cursor = connection.execute(
        "INSERT INTO models (project, project_number, location, model_id, body, versions, create_time,"
        " update_time) VALUES (?, ?, ?, ?, ?, 1, ?, ?)",
        (name.project, number_of(name.project), name.location, name.model_id, json.dumps(body), at, at),
    )
    return int(cursor.lastrowid or 0)


def _check_unused(connection: sqlite3.Connection, name: ModelName) -> None:
    with suppress(ModelNotFoundError):
        _model(connection, name)
        raise ModelExistsError(name.model_id)


def _give(connection: sqlite3.Connection, id: int, number: int, aliases: Iterable[str]) -> None:
    """Give a version aliases; a version that has one of them loses it."""
    connection.executemany(
        "REPLACE INTO model_aliases (model, alias, version_id) VALUES (?, ?, ?)",
        [(id, alias, number) for alias in aliases],
    )


def _model(connection: sqlite3.Connection, name: ModelName) -> sqlite3.Row:
    """Return the row of a model; raise ModelNotFoundError."""
    row: sqlite3.Row | None = connection.execute(
        "SELECT id, versions FROM models WHERE project_number = ? AND location = ? AND model_id = ?",
        (number_of(name.project), name.location, name.model_id),
    ).fetchone()
    if row is None:
        raise ModelNotFoundError(str(name))
    return row


def _found(connection: sqlite3.Connection, name: ModelName) -> tuple[int, int]:
    """Return the number of a model's row, and the id of the named version; raise ModelNotFoundError."""
    id = int(_model(connection, name)["id"])
    if VERSION_ID.fullmatch(name.version):
        query, value = (
            "SELECT version_id FROM model_versions WHERE model = ? AND version_id = ?",
            name.version,
        )
    else:
        query, value = (
            "SELECT version_id FROM model_aliases WHERE model = ? AND alias = ?",
            name.version or DEFAULT,
        )
    row = connection.execute(query, (id, value)).fetchone()
    if row is None:
        raise ModelNotFoundError(str(name))
    return id, int(row["version_id"])


def _named(connection: sqlite3.Connection, name: ModelName) -> ModelVersion:
    return _version(connection, *_found(connection, name))


def _version(connection: sqlite3.Connection, id: int, number: int) -> ModelVersion:
    (version,) = _select(connection, "models.id = ? AND version_id = ?", id, number)
    return version


_SELECT = """
SELECT models.id AS id, project, location, model_id, version_id, pipeline,
    models.body AS model_body, model_versions.body AS version_body,
    models.create_time AS create_time, models.update_time AS update_time,
    model_versions.create_time AS version_create_time, model_versions.update_time AS version_update_time,
    (SELECT group_concat(alias, ' ') FROM model_aliases AS named
        WHERE named.model = models.id AND named.version_id = model_versions.version_id) AS aliases
FROM models JOIN model_versions ON model_versions.model = models.id WHERE
"""


def _select(connection: sqlite3.Connection, where: str, *values: object) -> Iterator[ModelVersion]:
    # The conditions are constants, and the values are bound.
    yield from map(_version_of, connection.execute(_SELECT + where, values).fetchall())


def _version_of(row: sqlite3.Row) -> ModelVersion:
    """Return the version of a row; raise UnreadableModelError."""
    name = ModelName(row["project"], row["location"], row["model_id"])
    model = _body(row, "model", ("create_time", "update_time"), name)
    name = name._replace(version=str(row["version_id"]))
    own = _body(row, "version", ("version_create_time", "version_update_time"), name)
    labels = {**model.get("labels", {}), **own.get("labels", {})}
    return ModelVersion(
        id=row["id"],
        project=name.project,
        location=name.location,
        model_id=name.model_id,
        version_id=row["version_id"],
        body=model | own | ({"labels": labels} if labels else {}),
        aliases=tuple(sorted((row["aliases"] or "").split())),
        pipeline=row["pipeline"],
        **{column: row[column] for column in _TIMES},
    )


def _body(row: sqlite3.Row, kind: str, times: tuple[str, str], name: ModelName) -> JsonObject:
    """Return the body in a row of a model or version; raise UnreadableModelError."""
    unreadable = [column for column in times if not readable_time(row[column])]
    try:
        body = body_of(row[f"{kind}_body"])
    except (ValueError, TypeError, RecursionError):
        unreadable.insert(0, f"{kind}_body")
    if unreadable:
        raise UnreadableModelError(str(name), " ".join(unreadable))
    return body
