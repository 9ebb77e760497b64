"""What stands between the network and every HTTP server of this project, environment servers and rollout actors alike.

    connection -> connections  limit, deadline for the request's header, idle and slow readers' deadlines; a protocol of
                               uvicorn's
    request    -> guard        bearer token, size and deadline of the body, memory of all bodies together; ASGI
               -> json_body    422 for what is JSON to some parsers only: NaN, 1e999, lone surrogates, deep nesting
               -> slots        how many may be answered at once; ASGI, or a context
    handler    -> leaving      work for a client that hangs up is cancelled

Imported by environment images, which hold no trainer: standard library, pydantic, starlette and uvicorn only.
"""
