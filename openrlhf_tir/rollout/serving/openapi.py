"""One OpenAPI document at /openapi.json for the routes here and those of the mounted app."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


def document(app: FastAPI, mounted: Any, has_token: bool) -> None:
    """Replace `app.openapi`.

    If both apps have a path or a schema of the same name, the one of `app` counts, because `app` answers.

    Args:
        app: The outer app.
        mounted: The app that is mounted on it, or None.
        has_token: True if requests need a bearer token.
    """
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        schema = own()
        mounted_schema = mounted.openapi() if isinstance(mounted, FastAPI) else {}
        schema["paths"] = mounted_schema.get("paths", {}) | schema["paths"]
        components = schema.setdefault("components", {})
        components["schemas"] = mounted_schema.get("components", {}).get("schemas", {}) | components.get("schemas", {})
        if has_token:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's manual says
