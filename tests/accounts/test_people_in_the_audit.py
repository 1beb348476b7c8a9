"""Changes of people, log-out, and who is named: each is a line with person, role and address, and without a secret."""

from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group, User
from django.urls import reverse

from audit.models import AuditLine
from mirbad.accounts import people
from mirbad.up.bootstrap import people as bootstrap

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GOOD = "correct horse battery"
OTHER = "another horse battery"


@pytest.fixture(autouse=True)
def _quick(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def newest(action="person"):
    line = AuditLine.objects.filter(action=action).order_by("-id").first()
    return SimpleNamespace(target=line.target, detail=line.detail, who=(line.person, line.role, line.address))


def test_each_change_of_a_person_is_a_line(owner):
    add = owner.client.post(
        reverse("admin:auth_user_add"),
        {"username": "ada", "password1": GOOD, "password2": GOOD, "usable_password": "true"},
    )
    assert add.status_code == 302
    ada = User.objects.get(username="ada")
    line = newest()
    assert (line.target, line.detail) == ("ada", "created; now no role, active")
    assert line.who == ("owner", "owner", "127.0.0.1")
    change = reverse("admin:auth_user_change", args=[ada.pk])
    fields = {"username": "ada", "first_name": "", "last_name": "", "email": "", "is_active": "on"}
    operators = Group.objects.get(name="operator").pk
    assert owner.client.post(change, {**fields, "groups": operators}).status_code == 302
    assert newest().detail == "changed: Groups; now operator, active"
    assert owner.client.post(change, {**fields, "groups": operators, "is_active": ""}).status_code == 302
    assert newest().detail == "changed: Active; now operator, inactive"
    password = reverse("admin:auth_user_password_change", args=[ada.pk])
    sent = {"password1": OTHER, "password2": OTHER, "usable_password": "true"}
    assert owner.client.post(password, sent).status_code == 302
    assert newest().detail == "changed: password; now operator, inactive"
    assert not any(secret in str(list(AuditLine.objects.values_list())) for secret in (GOOD, OTHER, "md5"))


def test_a_change_of_ones_own_password_is_a_line_and_a_wrong_one_is_none(owner):
    owner.user.set_password(GOOD)
    owner.user.save()
    owner.client.force_login(owner.user, backend="django.contrib.auth.backends.ModelBackend")
    url = reverse("admin:password_change")
    wrong = {"old_password": "not this one", "new_password1": OTHER, "new_password2": OTHER}
    assert owner.client.post(url, wrong).status_code == 200
    assert not AuditLine.objects.filter(action="person").exists()
    assert owner.client.post(url, {**wrong, "old_password": GOOD}).status_code == 302
    assert newest().detail == "changed the own password"
    assert newest().who == ("owner", "owner", "127.0.0.1")
    assert User.objects.get(username="owner").check_password(OTHER)


def test_a_log_out_is_a_line_under_the_session_that_ended(owner, anybody):
    session = owner.client.session.session_key
    assert owner.client.post(reverse("logout")).status_code == 302
    line = newest("logout")
    assert (line.target, line.who) == ("owner", ("owner", "owner", "127.0.0.1"))
    assert session not in str(list(AuditLine.objects.values_list()))
    for client in (owner.client, anybody):
        client.post(reverse("logout"))
    assert AuditLine.objects.filter(action="logout").count() == 1


def test_the_admin_of_the_settings_is_a_line_when_it_changes(monkeypatch):
    given = people.settings().model_copy(update={"admin_password": GOOD})
    monkeypatch.setattr(bootstrap, "settings", lambda: given)
    for _ in range(2):
        bootstrap.ensure_password()
    line = AuditLine.objects.get(action="person")
    assert (line.actor, line.target, line.detail) == (
        "config", "admin", "password and rights set from MIRBAD_ADMIN_PASSWORD",
    )  # fmt: skip
