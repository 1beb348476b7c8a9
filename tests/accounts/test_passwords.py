"""Passwords: the rules wherever one is set, and the memory of checking them."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from audit.models import AuditLine
from mirbad.accounts import hashing, people
from mirbad.accounts.errors import WeakPassword
from mirbad.up.bootstrap import people as bootstrap

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GOOD = "correct horse battery"
WEAK = ["x", "elevenchars", "Password1234", "123456789012345"]


@pytest.fixture(autouse=True)
def _quick(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.mark.parametrize("password", [*WEAK, " " * 3])
def test_the_admin_gets_no_weak_password_and_keeps_the_old_one(password, monkeypatch):
    people.ensure_admin(GOOD)
    given = people.settings().model_copy(update={"admin_password": password})
    monkeypatch.setattr(bootstrap, "settings", lambda: given)
    with pytest.raises(WeakPassword, match="MIRBAD_ADMIN_PASSWORD"):
        bootstrap.ensure_password()
    assert User.objects.get(username="admin").check_password(GOOD)


def test_a_master_whose_admin_has_a_short_password_already_still_starts(monkeypatch):
    people.ensure_admin(GOOD)
    user = User.objects.get(username="admin")
    user.set_password("short")
    User.objects.filter(pk=user.pk).update(password=user.password)
    assert people.ensure_admin("short") is False


def test_the_stored_password_is_named_by_its_file(tmp_path, monkeypatch):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "admin-password").write_text("x\n")
    given = people.settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(bootstrap, "settings", lambda: given)
    with pytest.raises(WeakPassword, match="secrets/admin-password"):
        bootstrap.ensure_password()
    assert not User.objects.exists()


@pytest.mark.parametrize("password", WEAK)
def test_the_command_that_sets_the_admins_password_refuses_it(password, tmp_path, monkeypatch):
    command = import_module("mirbad.up.management.commands.admin-password")
    (tmp_path / "secrets").mkdir()
    monkeypatch.setattr(command, "settings", lambda: people.settings().model_copy(update={"data": tmp_path}))
    monkeypatch.setattr(command.getpass, "getpass", lambda _: password)
    with pytest.raises(CommandError, match="The password is refused"):
        call_command("admin-password", "--set")
    assert not (tmp_path / "secrets" / "admin-password").exists()


@pytest.mark.parametrize("password", WEAK)
def test_createsuperuser_without_questions_refuses_it_and_creates_nobody(password, monkeypatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", password)
    with pytest.raises(CommandError, match="The password of DJANGO_SUPERUSER_PASSWORD is refused"):
        call_command("createsuperuser", "--noinput", username="admin", email="a@example.com", verbosity=0)
    assert not User.objects.exists()


def test_createsuperuser_refuses_it_even_when_the_person_insists(monkeypatch):
    command = import_module("django.contrib.auth.management.commands.createsuperuser")
    monkeypatch.setattr(command.getpass, "getpass", lambda *_: "short")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(CommandError, match="The password is refused"):
        call_command("createsuperuser", username="sam", email="a@example.com", verbosity=0)
    assert not User.objects.exists()


def test_createsuperuser_with_a_good_password_creates_the_account(monkeypatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", GOOD)
    call_command("createsuperuser", "--noinput", username="sam", email="a@example.com", verbosity=0)
    assert User.objects.get().check_password(GOOD)
    line = AuditLine.objects.get(action="person")
    assert (line.actor, line.target) == ("config", "sam")
    assert line.detail == "created as an owner by the command createsuperuser"


def test_changepassword_is_recorded_once_it_changed_something(monkeypatch):
    User.objects.create_user("sam", password=GOOD)
    command = import_module("django.contrib.auth.management.commands.changepassword")
    monkeypatch.setattr(command.getpass, "getpass", lambda *_, **__: "short")
    with pytest.raises(CommandError, match="Aborting password change"):
        call_command("changepassword", "sam")
    assert not AuditLine.objects.exists()
    monkeypatch.setattr(command.getpass, "getpass", lambda *_, **__: f"{GOOD} 2")
    call_command("changepassword", "sam", verbosity=0)
    assert User.objects.get().check_password(f"{GOOD} 2")
    line = AuditLine.objects.get()
    assert (line.action, line.actor, line.target) == ("person", "config", "sam")
    assert line.detail == "password changed by the command changepassword"


@pytest.mark.parametrize("password", WEAK)
def test_the_django_admin_refuses_it(password, owner):
    User.objects.filter(pk=owner.user.pk).update(is_superuser=True)
    for path, who in (("/admin/auth/user/add/", "admin-2"), (f"/admin/auth/user/{owner.user.pk}/password/", "owner")):
        form = {"username": who, "usable_password": "true", "password1": password, "password2": password}
        answer = owner.client.post(path, form)
        assert answer.status_code == 200
        assert b"errorlist" in answer.content
    assert not User.objects.filter(username="admin-2").exists()


@pytest.fixture
def real(settings):
    settings.PASSWORD_HASHERS = ["mirbad.accounts.hashing.BoundedArgon2", "mirbad.accounts.hashing.BoundedPBKDF2"]


def test_hashes_that_exist_stay_valid(real):
    from django.contrib.auth.hashers import Argon2PasswordHasher, check_password

    hashed = Argon2PasswordHasher().encode(GOOD, "a-salt-of-16-chars")
    assert check_password(GOOD, hashed)
    assert not check_password("wrong", hashed)


class Crowd:
    """Holds each hash until it is released, and counts how many are computed at the same time."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def hash(self, *_args, **_more):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        threading.Event().wait(0.01)
        with self.lock:
            self.now -= 1
        return True


@pytest.mark.parametrize("people_at_once", [2, 10, 60])
def test_however_many_log_in_one_hash_is_computed_at_a_time(people_at_once, monkeypatch):
    crowd = Crowd()
    monkeypatch.setattr(hashing.Argon2PasswordHasher, "verify", crowd.hash)
    monkeypatch.setattr(hashing.PBKDF2PasswordHasher, "encode", crowd.hash)
    monkeypatch.setattr(hashing, "places", hashing.Places())
    both = [lambda: hashing.BoundedArgon2().verify("x", "y"), lambda: hashing.BoundedPBKDF2().encode("x", "y")]

    def attempt(number):
        try:
            return both[number % 2]()
        except hashing.HashingBusy as error:
            return error

    with ThreadPoolExecutor(people_at_once) as pool:
        answers = list(pool.map(attempt, range(people_at_once)))
    assert crowd.most == 1
    assert sum(answer is True for answer in answers) >= min(people_at_once, 1 + hashing.MOST_WAITING)


def test_a_log_in_that_finds_no_place_is_503_and_not_an_attempt(real, monkeypatch):
    User.objects.create_user("sam", password=GOOD)
    full = hashing.Places(at_once=1, waiting=0)
    monkeypatch.setattr(hashing, "places", full)
    browser, form = Client(), {"username": "sam", "password": GOOD}
    with full.one():
        for _ in range(7):
            answer = browser.post("/login", form, headers={"Accept": "application/json"})
            assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "unavailable", "5")
        assert b"Try again in a few seconds" in browser.post("/login", form).content
    assert browser.post("/login", form).status_code == 302


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize(
    "hash_it",
    [
        lambda: hashing.BoundedArgon2().encode("x", "y"),
        lambda: hashing.BoundedArgon2().verify("x", "y"),
        lambda: hashing.BoundedPBKDF2().encode("x", "y"),
        lambda: hashing.BoundedPBKDF2().encode("x", "y", 7),
    ],
)
def test_a_hash_and_its_threads_give_way_to_the_event_loop(hash_it, monkeypatch):
    def seen(*_arguments):
        with ThreadPoolExecutor(1) as started_by_the_hash:
            return priority(), started_by_the_hash.submit(priority).result()

    for hasher in (hashing.Argon2PasswordHasher, hashing.PBKDF2PasswordHasher):
        monkeypatch.setattr(hasher, "encode", seen)
        monkeypatch.setattr(hasher, "verify", seen)
    own = priority()
    lowered = min(19, own + hashing.NICE)  # the kernel knows no lower one
    assert hash_it() == (lowered, lowered)
    assert priority() == own
