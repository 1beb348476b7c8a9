"""The documentation names settings, files and anchors that exist."""

import re
from pathlib import Path

from mirbad.kernel.conf import Settings
from tests.architecture.source import ROOT, modules

PAGES = (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    broken = []
    for page in PAGES:
        for path, anchor in _LINK.findall(page.read_text()):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not broken


def test_every_setting_has_its_line() -> None:
    described = set(re.findall(r"^\| `([A-Z_0-9]+)`", (ROOT / "docs/operations/settings.md").read_text(), re.MULTILINE))
    fields = {str(field.alias or name).upper() for name, field in Settings.model_fields.items()}
    named = {name if name == "DATABASE_URL" or name.startswith("MIRBAD_") else f"MIRBAD_{name}" for name in fields}
    assert described == named


def _is_there(dotted: str) -> bool:
    """Tell whether a dotted name is a module of the product, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        module = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if module.is_file():
            rest = parts[length:]
            return not rest or bool(re.search(rf"\b{re.escape(rest[0])}\b", module.read_text()))
    return False


def test_every_module_that_the_documentation_names_exists() -> None:
    dotted = re.compile(r"`((?:mirbad|audit|nodes|models_app|jobs|agent)(?:\.(?!json|sqlite3)\w+)+)")
    files = re.compile(r"`((?:mirbad|audit|nodes|models_app|jobs|agent|tests|deploy|docs)/[\w/.-]*)`")
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        if "operations" not in page.parts and page.name != "README.md"  # these name files of the data folder
        for name in (*dotted.findall(page.read_text()), *files.findall(page.read_text()))
        if not ((ROOT / name).exists() if "/" in name else _is_there(name))
    ]
    assert not gone


def test_the_folder_map_has_every_folder_of_the_product() -> None:
    listed = set(re.findall(r"^\| `([\w/]+)`", (ROOT / "docs/FOLDERS.md").read_text(), re.MULTILINE))
    parts = {"api", "pages", "views", "contexts", "forms", "management", "commands", "templatetags", "icons"}
    folders = {str(path.parent.relative_to(ROOT)) for path in modules()}
    assert {folder for folder in listed if not (ROOT / folder).is_dir()} == set()
    assert {folder for folder in folders - listed if Path(folder).name not in parts} == set()


def _source() -> str:
    """Return code and templates of the product as one line, adjacent Python strings joined."""
    files = [*modules(), *sorted((ROOT / "templates").rglob("*.html"))]
    text = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in files))
    return re.sub(r"\s+", " ", text)


def test_labels_and_codes_in_the_guides_exist_in_the_product() -> None:
    source = _source()
    guides = [ROOT / "docs/troubleshooting.md", *sorted((ROOT / "docs/operations").glob("*.md"))]
    gone = []
    for page in guides:
        text = page.read_text()
        labels = re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", text)
        parts = [part.strip() for label in labels for part in re.split(r" → |…", label) if part.strip()]
        codes = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)
        gone += [f"{page.name}: {name}" for name in (*parts, *codes) if name not in source]
    assert not gone
