"""``GET /agent/bundles``: anonymous and read only. There is no secret in an archive, and its hash is checked."""

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from mirbad.bundles import archive


@require_safe
def bundles(request: HttpRequest) -> HttpResponse:
    """The archives, each with its address and SHA-256."""
    rows = [
        {
            "rid": bundle.rid,
            "url": request.build_absolute_uri(bundle.path),
            "sha256": bundle.sha256,
            "size": bundle.size,
            "version": bundle.version,
            "folder": bundle.folder,
        }
        for bundle in archive.bundles()
    ]
    return JsonResponse({"bundles": rows}, headers={"Cache-Control": "no-cache"})


@require_safe
def bundle(request: HttpRequest, rid: str) -> HttpResponse:
    """One archive."""
    found = archive.find(rid)
    if found is None:
        raise Http404("There is no agent for this kind of machine.")
    etag = f'"{found.sha256}"'
    if request.headers.get("If-None-Match") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    name = f"{found.folder}-{found.rid}.tar.gz"
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(found.content, content_type="application/gzip", headers=headers)
