"""``{% load mirbad %}``: icons, times, sizes."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django import template
from django.template import Context, Engine
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
    """Join texts as lines of one block."""
    return "\n".join(texts)


@register.simple_tag
def icon(name: str, label: str = "", css: str = "") -> SafeString:
    """Return an icon. Without `label` it is decoration, and a screen reader skips it."""
    inner = mark_safe(strokes()[name])  # noqa: S308 - from our own sheet of icons
    if label:
        return format_html(
            '<svg class="icon {}" viewBox="0 0 24 24" role="img" aria-label="{}">{}</svg>', css, label, inner
        )
    return format_html('<svg class="icon {}" viewBox="0 0 24 24" aria-hidden="true">{}</svg>', css, inner)


@register.simple_block_tag(takes_context=True)
def confirm(
    context: Context, content: str, verb: str, url: str, symbol: str = "", css: str = "", danger: bool = False
) -> SafeString:
    """Render a button that posts to `url` once the user has answered the enclosed question."""
    values = {"verb": verb, "url": url, "symbol": symbol, "css": css, "danger": danger}
    text = mark_safe(" ".join(content.split()))  # noqa: S308 - the engine has escaped the enclosed text
    with context.push(values | {"confirm": text}):
        return Engine.get_default().get_template("parts/action.html").render(context)


@register.simple_tag
def moment(value: datetime | None, absent: str = "never") -> SafeString:
    """Return a time relative to now (the script keeps it current), with the exact UTC time on hover."""
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
    """Return `value` with its unit, or "not reported": unknown is never 0."""
    if value is None or value == "":
        return parts.NOT_REPORTED
    text = f"{value:.0f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


@register.filter
def count(value: int, words: str) -> str:
    """Return ``2 nodes`` for ``{{ 2|count:"node,nodes" }}``."""
    one, _, many = words.partition(",")
    return parts.plural(value, one, many)


@register.simple_tag
def live(url: str, *topics: str) -> SafeString:
    """Return the attributes of a part that reloads from `url` after an invalidation of one of `topics`."""
    events = [f"mirbad:{topic} from:body throttle:1s" for topic in topics]
    trigger = ", ".join([*events, "mirbad:resync from:body throttle:1s"])
    return format_html('hx-get="{}" hx-trigger="{}" hx-swap="outerMorph"', url, trigger)


@register.simple_tag
def later(url: str, *topics: str) -> SafeString:
    """Return the attributes of `live` for a part of another app: it is also loaded when the page has arrived."""
    events = [f"mirbad:{topic} from:body throttle:1s" for topic in topics]
    trigger = ", ".join(["load", *events, "mirbad:resync from:body throttle:1s"])
    return format_html('hx-get="{}" hx-trigger="{}" hx-swap="innerMorph"', url, trigger)


@register.simple_tag
def submits(url: str) -> SafeString:
    """Return the attributes of a form that is sent to `url` and shows a refusal in its own ``.refusal``."""
    return format_html(
        'method="post" action="{0}" hx-post="{0}" hx-target="find .refusal" hx-disable="find button[type=submit]" '
        'autocomplete="off"',
        url,
    )


@register.simple_tag
def query(**values: str) -> str:
    """Return `values` as the query of a URL: ``{% query node=node.pk as of_node %}``."""
    return urlencode(values, safe="/", quote_via=quote)


@register.filter
def topic(subject: str, name: str) -> str:
    """Return the event of one row: ``{{ node.id|topic:"nodes" }}`` is ``nodes:<id>``."""
    return f"{name}:{subject}"


@register.simple_tag
def link(view: str, value: str, css: str = "") -> SafeString | str:
    """Return `value` as a link to its page; plain text when it cannot be an id (audit lines hold any text)."""
    if not value:
        return ""
    try:
        url = reverse(view, args=[value])
    except NoReverseMatch:
        return value
    return format_html('<a class="{}" href="{}">{}</a>', css, url, value)
