"""Use of keys: added up safely, read by day, drawn, and given as CSV."""

import csv
import io
from datetime import date, timedelta

import pytest
from django.urls import reverse

from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from models_app import keys, usage
from models_app.models import UsageDay
from models_app.pages.contexts.usage import bars_of

pytestmark = [pytest.mark.app, pytest.mark.django_db]

DAY = date(2026, 3, 1)


def sums(requests=1, prompt=5, completion=7, failed=0, unreported=0):
    return usage.Sums(requests, failed, unreported, prompt, completion)


def test_sums_are_added_to_what_stands_in_one_statement_a_place():
    usage.add({(1, "m", DAY): sums(), (1, "n", DAY): sums()})
    usage.add({(1, "m", DAY): sums(3, 10, 20, 1, 2)})
    row = UsageDay.objects.get(model_id_text="m")
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (4, 15, 27)
    assert (row.failed, row.unreported) == (1, 2)
    assert UsageDay.objects.count() == 2
    usage.add({})


@pytest.fixture
def rows():
    key, _ = keys.create("=cmd|' /C calc'!A0", actor=CONFIG)
    today = clock.now().date()
    usage.add(
        {
            (key.id, "m", today): sums(2),
            (key.id, "n", today - timedelta(days=1)): sums(),
            (0, "m", today - timedelta(days=40)): sums(),
        }
    )
    return key


def test_the_api_narrows_by_key_model_and_day(rows, viewer):
    def items(**query):
        return viewer.client.get(reverse("api-usage"), query).json()["items"]

    today = clock.now().date()
    assert [item["model"] for item in items()] == ["m", "n", "m"]
    assert [item["key"] for item in items(key=0)] == [0]
    assert items(key=0)[0]["keyName"] == "Playground"
    assert len(items(model="m")) == 2
    assert [item["requests"] for item in items(model="m", **{"from": today.isoformat()})] == [2]
    assert len(items(to=(today - timedelta(days=2)).isoformat())) == 1
    assert len(items(to=(today - timedelta(days=1)).isoformat())) == 2


@pytest.mark.parametrize("query", [{"from": "yesterday"}, {"to": "2026-13-01"}, {"key": "x"}, {"format": "xml"}])
def test_what_cannot_be_understood_is_400(viewer, query):
    answer = viewer.client.get(reverse("api-usage"), query)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_csv_holds_all_rows_and_no_formula_of_a_name(rows, viewer):
    answer = viewer.client.get(reverse("api-usage"), {"format": "csv"})
    assert answer["Content-Type"].startswith("text/csv")
    assert "attachment" in answer["Content-Disposition"]
    table = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(table) == 3
    assert table[0]["keyName"].startswith("'=cmd")
    assert (table[0]["requests"], table[0]["promptTokens"], table[0]["completionTokens"]) == ("2", "5", "7")


def test_the_page_shows_the_sums_and_links_the_same_rows_as_csv(rows, viewer):
    page = " ".join(viewer.client.get(reverse("models:usage"), {"days": "7", "key": rows.id}).content.decode().split())
    assert "<strong>24</strong> tokens" in page
    assert "3</strong> requests" in " ".join(page.split())
    assert f"key={rows.id}" in page
    assert "format=csv" in page
    wide = viewer.client.get(reverse("models:usage"), {"days": "90"}).content.decode()
    assert "<strong>36</strong> tokens" in wide
    assert viewer.client.get(reverse("models:usage"), {"days": "x", "key": "y"}).status_code == 200


def test_the_chart_draws_each_day_in_proportion():
    found = bars_of(
        [
            UsageDay(key_number=1, model_id_text="m", day=DAY, prompt_tokens=30, completion_tokens=10, requests=1),
            UsageDay(key_number=1, model_id_text="m", day=DAY + timedelta(days=2), prompt_tokens=20, requests=1),
        ],
        DAY,
        3,
    )
    assert [bar.day for bar in found] == [DAY, DAY + timedelta(days=1), DAY + timedelta(days=2)]
    assert (found[0].completion_y, found[0].completion_height, found[0].prompt_height) == (0, 40, 120)
    assert found[1].prompt_height == 0
    assert found[2].prompt_height == 80
