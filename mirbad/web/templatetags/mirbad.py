"""``{% load mirbad %}``: icons, times, sizes."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import template
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from mirbad.kernel import clock
from mirbad.web import parts
from mirbad.web.icons import strokes

register = template.Library()
register.filter("size", parts.size)
register.filter("span", parts.span)
register.filter("fingerprint", parts.fingerprint)


@register.filter
def lines(texts: Iterable[str]) -> str:
    """Texts as lines of one block."""
    return "\n".join(texts)


@register.simple_tag
def icon(name: str, label: str = "", css: str = "") -> SafeString:
    """An icon. Without `label` it is decoration, and a screen reader passes it by."""
    inner = mark_safe(strokes()[name])  # noqa: S308 - from our own sheet of icons
    if label:
        return format_html(
            '<svg class="icon {}" viewBox="0 0 24 24" role="img" aria-label="{}">{}</svg>', css, label, inner
        )
    return format_html('<svg class="icon {}" viewBox="0 0 24 24" aria-hidden="true">{}</svg>', css, inner)


@register.simple_tag
def moment(value: datetime | None, absent: str = "never") -> SafeString:
    """A time, said relative to now (the script keeps it true), with the exact UTC time on hover."""
    if value is None:
        return format_html('<span class="muted">{}</span>', absent)
    return format_html(
        '<time datetime="{}" title="{} UTC" data-ago>{}</time>',
        value.isoformat(),
        value.strftime("%Y-%m-%d %H:%M:%S"),
        parts.ago(value, clock.now()),
    )


@register.filter
def reported(value: Any, unit: str = "") -> str:
    """`value` with its unit, or "not reported": unknown is never 0."""
    if value is None or value == "":
        return parts.NOT_REPORTED
    text = f"{value:.0f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


@register.filter
def count(value: int, words: str) -> str:
    """``{{ 2|count:"node,nodes" }}`` is ``2 nodes``."""
    one, _, many = words.partition(",")
    return parts.plural(value, one, many)


@register.simple_tag
def live(url: str, *topics: str) -> SafeString:
    """The attributes of a part that reads itself again from `url` when a hint of one of `topics` comes."""
    events = [f"mirbad:{topic} from:body throttle:1s" for topic in topics]
    trigger = ", ".join([*events, "mirbad:resync from:body throttle:1s"])
    return format_html('hx-get="{}" hx-trigger="{}" hx-swap="outerMorph"', url, trigger)


@register.simple_tag
def later(url: str, *topics: str) -> SafeString:
    """Like `live`, for a part that another app draws: it is fetched when the page has come."""
    events = [f"mirbad:{topic} from:body throttle:1s" for topic in topics]
    trigger = ", ".join(["load", *events, "mirbad:resync from:body throttle:1s"])
    return format_html('hx-get="{}" hx-trigger="{}" hx-swap="innerMorph"', url, trigger)


@register.filter
def topic(subject: str, name: str) -> str:
    """The event of one row: ``{{ node.id|topic:"nodes" }}`` is ``nodes:<id>``."""
    return f"{name}:{subject}"


@register.simple_tag
def link(view: str, value: str, css: str = "") -> SafeString | str:
    """`value` as a link to its page; plain text when it cannot be the id of one (audit lines hold any text)."""
    if not value:
        return ""
    try:
        url = reverse(view, args=[value])
    except NoReverseMatch:
        return value
    return format_html('<a class="{}" href="{}">{}</a>', css, url, value)
