"""Programs that run inside the sandbox: read as text by `programs`, never imported by the server. The standard library
only, but for pytest."""
