"""One optimiser step on a batch, on ranks of DeepSpeed ZeRO-3: packing, losses, auxiliary models, checkpoints."""
