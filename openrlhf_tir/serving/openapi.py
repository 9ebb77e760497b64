"""OpenAPI: one document at /openapi.json for our routes and those of the mounted app, bearer token included."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


def document(app: FastAPI, mounted: Any, has_token: bool) -> None:
    """Replace `app.openapi`. Where both apps have a path or a schema of the same name, ours counts: it answers."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        schema = own()
        theirs = mounted.openapi() if isinstance(mounted, FastAPI) else {}
        schema["paths"] = theirs.get("paths", {}) | schema["paths"]
        components = schema.setdefault("components", {})
        components["schemas"] = theirs.get("components", {}).get("schemas", {}) | components.get("schemas", {})
        if has_token:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # how FastAPI's manual says that the document is extended
