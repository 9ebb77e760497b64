"""The controller: what starts, what is trained, when engines get weights, what a checkpoint holds."""
