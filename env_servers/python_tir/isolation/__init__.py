"""How the code of a model is kept from everything else: levels of isolation, what each is made of, and the proof at
start."""
