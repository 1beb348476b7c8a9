"""Four standing people, so that access is tested everywhere alike: owner, operator, viewer, and a stranger.

The stranger has an account and no role. `anybody` has not signed in at all.
"""

from dataclasses import dataclass

import pytest
from django.contrib.auth.models import User
from django.test import Client

from mirbad.accounts import tokens
from mirbad.accounts.roles import ensure_groups
from mirbad.kernel import actor

PEOPLE = ("owner", "operator", "viewer", "stranger")
PASSWORD = "correct horse battery"


@dataclass(frozen=True)
class Person:
    """A user and a browser in which they are signed in."""

    user: User
    client: Client


def _person(name: str) -> Person:
    groups = ensure_groups()
    user = User.objects.create_user(name, password=None, is_staff=name == "owner")
    if name in groups:
        user.groups.add(groups[name])
    client = Client(raise_request_exception=False)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return Person(user, client)


@pytest.fixture
def owner(db) -> Person:
    return _person("owner")


@pytest.fixture
def operator(db) -> Person:
    return _person("operator")


@pytest.fixture
def viewer(db) -> Person:
    return _person("viewer")


@pytest.fixture
def stranger(db) -> Person:
    return _person("stranger")


@pytest.fixture
def people(owner, operator, viewer, stranger) -> dict[str, Person]:
    return {"owner": owner, "operator": operator, "viewer": viewer, "stranger": stranger}


@pytest.fixture
def anybody(db) -> Client:
    return Client(raise_request_exception=False)


@pytest.fixture
def with_token(db):
    """A function: a client that sends an admin token of the given role."""

    def make(role: str, owner: User | None = None) -> Client:
        _, secret = tokens.create(f"{role} of the tests", role, actor=actor.CONFIG, owner=owner)
        return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {secret}"})

    return make
