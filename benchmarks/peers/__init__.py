"""Peers side by side: the toy task trained by this project, by TRL, by OpenRLHF's own loop and by a plain PyTorch loop,
from one base model."""
