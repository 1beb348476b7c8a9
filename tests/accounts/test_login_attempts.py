"""The limit of log-in attempts: at the same moment, by address, by name, and by browser."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from audit.models import AuditLine
from mirbad.accounts import attempts, people
from mirbad.accounts.models import LoginCounter

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PASSWORD = "correct horse battery"
MOMENT = "2027-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def admin(settings, monkeypatch):
    monkeypatch.setattr(attempts, "_flood", attempts._Flood())  # each test has the same moment
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    people.ensure_admin(PASSWORD)


STRANGER = Client()  # one for all: a new one loads the middleware


def log_in(client=None, password="wrong", name="admin", address="192.0.2.1"):
    if client is None:
        STRANGER.cookies.clear()
    client = client or STRANGER
    return client.post("/login", {"username": name, "password": password}, REMOTE_ADDR=address).status_code


def lines(code="rate_limited"):
    found = AuditLine.objects.filter(error_code=code).order_by("id")
    return list(found.values_list("actor", "target", "detail"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("right", [False, True])
def test_of_twenty_posts_at_the_same_moment_five_are_checked(right):
    start = Barrier(20)

    def post(number):
        start.wait()
        try:
            return log_in(Client(), PASSWORD if right and number == 9 else "wrong")
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    checked = 20 - answers.count(429)
    # a good log-in takes its own attempt back: then one more may be checked
    assert 5 <= checked <= 5 + answers.count(302)
    assert answers.count(302) <= right
    assert len(lines()) == 1


def test_a_name_has_a_limit_over_all_addresses():
    answers = [log_in(address=f"192.0.2.{number}") for number in range(11)]
    assert answers == [403] * 10 + [429]
    assert log_in(password=PASSWORD, address="198.51.100.1") == 429
    assert log_in(name="somebody", address="198.51.100.1") == 403


@pytest.mark.parametrize("other", ["ADMIN", " admin", "\uff41dmin"])
def test_spellings_of_a_name_count_together(other):
    for number in range(10):
        log_in(name=other, address=f"192.0.2.{number}")
    assert log_in(password=PASSWORD, address="198.51.100.1") == 429


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:0db8:0:0::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_addresses_that_one_client_has_count_together(one, other, together):
    for _ in range(5):
        log_in(address=one)
    assert (log_in(address=other) == 429) is together


def test_a_good_log_in_does_not_reset_the_count_of_another_name(settings):
    User.objects.create_user("mallory", password="mallory's own pass")
    for _ in range(3):
        for _ in range(2):
            log_in()
        log_in(name="mallory", password="mallory's own pass")
    assert log_in(password=PASSWORD) == 429


def test_good_log_ins_alone_never_lock_anybody_out():
    assert [log_in(password=PASSWORD) for _ in range(12)] == [302] * 12


def test_strangers_who_guess_do_not_keep_out_the_browser_of_the_person():
    own = Client()
    assert log_in(own, PASSWORD, address="203.0.113.5") == 302
    own.post("/logout")
    for number in range(15):
        log_in(address=f"192.0.2.{number}")
    for _ in range(5):
        log_in(name="x", address="203.0.113.5")
    assert log_in(password=PASSWORD, address="203.0.113.5") == 429
    assert log_in(own, PASSWORD, address="203.0.113.5") == 302


def test_the_known_browser_has_a_limit_of_its_own():
    own = Client()
    log_in(own, PASSWORD)
    own.post("/logout")
    assert [log_in(own) for _ in range(6)] == [403] * 5 + [429]
    assert log_in(own, PASSWORD, address="198.51.100.7") == 429


def test_a_known_browser_of_another_name_or_a_cookie_made_up_is_a_stranger():
    User.objects.create_user("mallory", password="mallory's own pass")
    browser = Client()
    log_in(browser, "mallory's own pass", name="mallory", address="198.51.100.3")
    browser.post("/logout")
    for _ in range(5):
        log_in()
    assert log_in(browser, PASSWORD) == 429
    browser.cookies[attempts.DEVICE_COOKIE] = f"aa:{attempts.Counter('name', 'admin').key}:x:y"
    assert log_in(browser, PASSWORD) == 429


@pytest.mark.parametrize("form", [{}, {"username": "admin"}, {"username": "admin", "password": ""}, {"password": "x"}])
def test_posts_without_a_name_or_password_count_too(form):
    browser = Client()
    answers = [browser.post("/login", form, REMOTE_ADDR="192.0.2.9").status_code for _ in range(7)]
    assert answers == [403] * 5 + [429] * 2
    assert AuditLine.objects.count() == 6


def test_a_lock_out_is_one_line_and_its_end_says_how_many_posts_it_refused():
    with time_machine.travel(MOMENT, tick=False) as clock:
        for _ in range(5):
            log_in()
        for _ in range(20):
            clock.shift(0.1)
            assert log_in(password=PASSWORD) == 429
        assert [line[:2] for line in lines()] == [("api:192.0.2.1", "admin")]
        assert "5 attempts" in lines()[0][2]
        clock.shift(61)
        assert log_in(password=PASSWORD) == 302
        assert len(lines()) == 2
        assert "It refused 20 attempts" in lines()[1][2]


def test_a_lock_out_after_which_nobody_comes_is_closed_by_the_tick():
    with time_machine.travel(MOMENT, tick=False) as clock:
        for _ in range(5):
            log_in()
        for _ in range(4):
            clock.shift(1.5)
            log_in()
        attempts.close_ended()
        assert len(lines()) == 1
        clock.shift(121)
        attempts.close_ended()
        attempts.close_ended()
        assert len(lines()) == 2
        assert "It refused 4 attempts" in lines()[1][2]
        assert LoginCounter.objects.count() == 0


def test_with_log_in_disabled_a_stranger_fills_no_log(monkeypatch):
    off = people.settings().model_copy(update={"admin_password": ""})
    monkeypatch.setattr(people, "settings", lambda: off)
    assert [log_in() for _ in range(20)] == [403] * 5 + [429] * 15
    assert AuditLine.objects.count() == 6


def test_a_clock_that_was_set_back_locks_nobody_out_for_longer():
    with time_machine.travel(MOMENT, tick=False) as clock:
        for _ in range(6):
            log_in()
        clock.shift(-3600)
        assert log_in(password=PASSWORD) == 302


@pytest.mark.parametrize("between", [20, 50])
def test_wrong_passwords_minutes_apart_never_add_up(between):
    with time_machine.travel(MOMENT, tick=False) as clock:
        for _ in range(10):
            assert log_in(password=PASSWORD) == 302
            clock.shift(between)
            assert log_in(password=PASSWORD) == 302
            assert log_in() == 403
            clock.shift(between)


def test_a_refused_post_waits_as_long_as_the_answer_says():
    with time_machine.travel(MOMENT, tick=False) as clock:
        for _ in range(5):
            log_in()
        clock.shift(20)
        answer = Client().post("/login", {"username": "admin", "password": PASSWORD}, REMOTE_ADDR="192.0.2.1")
        assert answer["Retry-After"] == "40"
        clock.shift(40)
        assert log_in(password=PASSWORD) == 302


def test_a_flood_of_refused_posts_is_read_and_hardly_written(django_assert_num_queries):
    with time_machine.travel(MOMENT, tick=False):
        for _ in range(7):
            log_in()
        with django_assert_num_queries(4) as queries:
            for _ in range(2):
                log_in()
        assert [query["sql"][:6] for query in queries.captured_queries] == ["SELECT"] * 4
