"""How a model's code is kept from all else: levels of isolation, what each is made of, and the proof at start."""
