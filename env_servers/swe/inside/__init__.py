"""Programs that run inside the sandbox. `programs` reads them as text; the server never imports them. They use the
standard library and pytest."""
