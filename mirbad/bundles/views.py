"""``GET /agent/bundles``: anonymous and read only. There is no secret in an archive, and its hash is checked."""

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port
from django.views.decorators.http import require_safe

from mirbad.bundles import SENT_HOST, archive


@require_safe
def bundles(request: HttpRequest) -> HttpResponse:
    """List the archives, each with its address and SHA-256."""
    rows = [
        {
            "rid": bundle.rid,
            "url": _address(request, bundle),
            "sha256": bundle.sha256,
            "size": bundle.size,
            "version": bundle.version,
            "folder": bundle.folder,
        }
        for bundle in archive.bundles()
    ]
    return JsonResponse({"bundles": rows}, headers={"Cache-Control": "no-cache"})


def _address(request: HttpRequest, bundle: archive.Bundle) -> str:
    """Return the address of the archive by the name that the request used, where that can be one."""
    sent: str = getattr(request, "scope", {}).get(SENT_HOST, "")
    if split_domain_port(sent)[0]:
        return f"{request.scheme}://{sent}{bundle.path}"
    return request.build_absolute_uri(bundle.path)


@require_safe
def bundle(request: HttpRequest, rid: str) -> HttpResponse:
    """Return one archive."""
    found = archive.find(rid)
    if found is None:
        raise Http404("No agent for this type of machine.")
    etag = f'"{found.sha256}"'
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    name = f"{found.folder}-{found.rid}.tar.gz"
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(found.content, content_type="application/gzip", headers=headers)
