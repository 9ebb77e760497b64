"""Rows for supervised fine-tuning.

file, directory, hub -> (where, row) -> pieces of text, each with its author -> SftRow: token ids and weights of the
loss
  read.py               pieces.py         chat.py, blocks.py                     tokens.py
a run's kept trajectories -> rows of the correct ones                            distill.py
"""
