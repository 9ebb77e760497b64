"""The client side of the environment protocol: sessions on environment servers, and what happens when these fail."""
