"""The store of models: the laws of versions and aliases, and databases of earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.training_service.state import database
from reconciler.training_service.state.database import Database, Store
from reconciler.training_service.state.models import (
    DEFAULT,
    ModelExistsError,
    ModelName,
    ModelNotFoundError,
    ModelStore,
    ModelVersion,
    OnlyVersionError,
)
from tests.support.training_service.bodies import model
from tests.support.training_service.served import Clock

PLACE = ("demo", "us-central1")
CENSUS = ModelName(*PLACE, "census")
PARENT = str(CENSUS)


def in_memory() -> ModelStore:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.prepare(connection)
    return ModelStore(Database(lambda: connection), Clock())


@pytest.fixture
def models() -> Iterator[ModelStore]:
    store = in_memory()
    yield store
    store.database.close()


def register(models: ModelStore, model_id: str = "census", parent: str = "", *aliases: str) -> ModelVersion:
    with models.database.writing() as connection:
        body = model(versionAliases=[*aliases])
        return models.register(connection, *PLACE, body, model_id=model_id, parent=parent)


ALIASES = st.lists(st.sampled_from([DEFAULT, "golden", "new"]), max_size=3)
VERSIONS = st.sampled_from(["", "1", "2", "3", "golden"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upload"), ALIASES),
        st.tuples(st.just("add"), ALIASES),
        st.tuples(st.just("merge"), VERSIONS, ALIASES, ALIASES),
        st.tuples(st.just("delete version"), VERSIONS),
        st.tuples(st.just("delete")),
    ),
    max_size=20,
)


@given(STEPS)
@example([("upload", []), ("delete version", "1")])
@example([("upload", []), ("add", []), ("delete version", "")])
def test_one_version_is_the_default_one_and_no_alias_is_on_two_after_any_steps(
    steps: list[tuple[object, ...]],
) -> None:
    models, versions = in_memory(), list[int]()
    with closing(models.database):
        for step in steps:
            versions = _after(models, versions, step)
            left = models.versions(CENSUS) if versions else []
            assert [version.version_id for version in left] == versions
            given = [alias for version in left for alias in version.aliases]
            assert len({*given}) == len(given)
            assert given.count(DEFAULT) == len(models.defaults(*PLACE)) == bool(left)
            assert all(models.get(CENSUS._replace(version=alias)) in left for alias in given)


def _after(models: ModelStore, versions: list[int], step: tuple[object, ...]) -> list[int]:
    """Take one step; return the ids of the versions that must be left, the newest first."""
    match step:
        case ("upload", list(aliases)):
            if not versions:
                assert DEFAULT in register(models, "census", "", *aliases).aliases
                return [1]
            with pytest.raises(ModelExistsError):
                register(models, "census", "", *aliases)
        case ("add", list(aliases)) if versions:
            added = register(models, "ignored", PARENT, *aliases)
            assert {*aliases} == {*added.aliases}
            return [added.version_id, *versions]
        case ("merge", str(version), list(added), list(removed)):
            name = CENSUS._replace(version=version)
            try:
                before = {*models.get(name).aliases}
                merged = models.merge_aliases(name, added, removed)
            except ModelNotFoundError:
                return versions
            given, taken = {*added} - {*removed}, {*removed} - {*added} - {DEFAULT}
            assert {*merged.aliases} == (before | given) - taken
        case ("delete version", str(version)):
            name = CENSUS._replace(version=version)
            try:
                gone = models.get(name).version_id
                models.delete_version(name)
            except ModelNotFoundError:
                return versions
            except OnlyVersionError:
                assert len(versions) == 1
                return versions
            return [each for each in versions if each != gone]
        case ("delete",) if versions:
            models.delete(CENSUS)
            return []
        case _:
            with pytest.raises(ModelNotFoundError):
                models.get(CENSUS)
    return versions


def test_version_is_registered_within_the_callers_transaction_or_not_at_all(models: ModelStore) -> None:
    register(models)

    def register_and_fail() -> None:
        with models.database.writing() as connection:
            models.register(connection, *PLACE, model(versionAliases=[DEFAULT]), parent=PARENT)
            models.register(connection, *PLACE, model())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        register_and_fail()
    (left,) = models.defaults(*PLACE)
    assert (left.version_id, left.aliases) == (1, (DEFAULT,))
    assert register(models, parent=PARENT).version_id == 2


def test_version_names_the_pipeline_that_made_it(models: ModelStore) -> None:
    pipeline = "projects/1/locations/us-central1/trainingPipelines/2"
    with models.database.writing() as connection:
        made = models.register(connection, *PLACE, model(), pipeline=pipeline)
    assert made.pipeline == pipeline
    assert len(made.model_id) == 19
    assert models.get(ModelName(*PLACE, made.model_id)) == made


def test_model_of_a_project_is_found_by_the_projects_number(models: ModelStore) -> None:
    made = register(models)
    _, number, _ = made.name.split("/", 2)
    assert models.get(ModelName(number, "us-central1", "census")) == made
    assert register(models, parent=made.name).version_id == 2


def test_database_of_before_there_were_models_gets_their_tables(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(database.open_file(path))
    store.set_setting("x", 1)
    store.database.close()
    with closing(sqlite3.connect(path)) as connection:
        for table in ("model_aliases", "model_versions", "models"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 7")
    for _ in range(2):
        store = Store(database.open_file(path), Clock())
        models = ModelStore(store.database, store.clock)
        known = models.defaults(*PLACE)
        register(models, f"census{len(known)}")
        store.database.close()
    assert [version.model_id for version in known] == ["census0"]
