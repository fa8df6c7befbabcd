"""Pages from templates: everything that is put in is escaped, and a policy forbids the browser everything else.

A page is one file that works from ``file://``. Its Content-Security-Policy allows the style and the script in it by
their digests (https://www.w3.org/TR/CSP3/, hash-source) and nothing else: no network, no style or handler in an
attribute, no script that a name from a file might smuggle in.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ms_recover.reporting.tables import one_line

_ROOM = "ms_recover.reporting.page"
_FOR_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render_page(
    package: str, template: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = (), **content: object
) -> str:
    """Return a page.

    Parameters
    ----------
    package : str
        The package that holds the template, its styles and its scripts; the template ``base.html``, which it extends,
        and ``base.css`` are of this room.
    template : str
        Name of the template.
    styles, scripts : sequence of str
        Names of files of the package, which are put into the page in this order.
    **content
        What the template names. Text is escaped and made printable; a `Markup` is put in as it is.
    """
    style = "\n".join([_resource(_ROOM, "base.css"), *(_resource(package, name) for name in styles)])
    script = "\n".join(_resource(package, name) for name in scripts)
    return (
        _environment(package)
        .get_template(template)
        .render(style=Markup(style), script=Markup(script), policy=Markup(_policy(style, script)), **content)  # noqa: S704
    )


def json_block(data: Any) -> Markup:
    """Return data as JSON for a ``<script type="application/json">``, which no text in it can end.

    ``<``, ``>`` and ``&`` and everything that is not ASCII are escaped as JSON allows (RFC 8259, section 7).
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_FOR_HTML))  # noqa: S704


def _policy(style: str, script: str) -> str:
    own = f"style-src {_digest(style)}"
    own += f"; script-src {_digest(script)}" if script else ""
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text("utf-8")


@cache
def _environment(package: str) -> Environment:
    def load(name: str) -> str:
        return _resource(_ROOM if name == "base.html" else package, name)

    return Environment(
        loader=FunctionLoader(load),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    """Escape what would act on the page instead of being shown, such as marks that reorder text."""
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
