"""Patterns such as /users/{id:int}/files/{path:rest} and what they lead to."""

from .urls import unquote


class NotFound(Exception):
    """No pattern has this path."""


class MethodNotAllowed(Exception):
    def __init__(self, allowed):
        super().__init__(", ".join(allowed))
        self.allowed = allowed


class Router:
    """The most specific pattern wins: a fixed part before an int, an int before a text, and the rest last."""

    def __init__(self):
        self._routes = []

    def add(self, method, pattern, target):
        if not pattern.startswith("/"):
            raise ValueError(f"{pattern!r} does not begin with a slash")
        parts = [_part(text) for text in pattern.strip("/").split("/") if text]
        names = [name for kind, name in parts if kind != "fixed"]
        if len(set(names)) != len(names):
            raise ValueError(f"{pattern!r} names a parameter twice")
        if any(kind == "rest" for kind, _ in parts[:-1]):
            raise ValueError("what takes the rest stands last")
        self._routes.append((method.upper(), parts, target))

    def match(self, method, path):
        """(target, parameters). Raises NotFound and MethodNotAllowed."""
        pieces = [unquote(p) for p in path.strip("/").split("/") if p]
        allowed, best = set(), None
        for route_method, parts, target in self._routes:
            found = _fit(parts, pieces)
            if found is None:
                continue
            allowed.add(route_method)
            if route_method not in (method.upper(), "ANY"):
                continue
            rank = [RANK[kind] for kind, _ in parts]
            if best is None or rank < best[0]:
                best = rank, target, found
        if best is not None:
            return best[1], best[2]
        if allowed:
            raise MethodNotAllowed(sorted(allowed))
        raise NotFound(path)

    def url_for(self, target, **parameters):
        """The path that leads to `target`. Raises KeyError."""
        for _, parts, other in self._routes:
            names = {name for kind, name in parts if kind != "fixed"}
            if other == target and names == set(parameters):
                return "/" + "/".join(name if kind == "fixed" else str(parameters[name]) for kind, name in parts)
        raise KeyError(target)


RANK = {"fixed": 0, "int": 1, "text": 2, "rest": 3}


def _part(text):
    if not (text.startswith("{") and text.endswith("}")):
        return "fixed", text
    name, _, kind = text[1:-1].partition(":")
    kind = kind or "text"
    if not name.isidentifier() or kind not in ("int", "text", "rest"):
        raise ValueError(f"{text!r} is no parameter")
    return kind, name


def _fit(parts, pieces):
    found = {}
    for i, (kind, name) in enumerate(parts):
        if kind == "rest":
            found[name] = "/".join(pieces[i:])
            return found
        if i >= len(pieces):
            return None
        if kind == "fixed" and pieces[i] != name:
            return None
        if kind == "int":
            if not pieces[i].isdigit():
                return None
            found[name] = int(pieces[i])
        elif kind == "text":
            found[name] = pieces[i]
    return found if len(parts) == len(pieces) else None
