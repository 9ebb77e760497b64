"""Sizes that bound memory: learner and engines work with them, and the plans count with them."""

from __future__ import annotations

HEAD_CHUNK_TOKENS = {"cpu": 256, "cuda": 2048}
"""Least number of tokens in a chunk of the learner's logits, by device. Every chunk reads the head's weights and reads
and writes their float32 gradient, and with fewer tokens that traffic outweighs the computation. On a card smaller
products would also leave most of it idle."""
HEAD_CHUNK_BYTES = 64 << 20
"""Least size of a chunk's float32 logits in bytes. At the peak two arrays of a chunk's size exist."""
GRADIENT_BUCKET_ELEMENTS = {"cpu": 2**23, "cuda": 2**26}
"""Gradient elements that are reduced over the ranks at once, by device. A larger parameter is reduced alone, without a
buffer."""
CPU_KV_CACHE_MIB = 256
"""KV cache of a CPU engine when vllm.kv_cache_mib is unset; vLLM's own default is a share of the whole machine."""
CPU_PREFILL_TOKENS = 4096
"""Prefill tokens of one step of a CPU engine."""
REWARD_BATCH_TOKENS = 16384
"""Tokens of a forward pass of a reward model, padding included. A longer response is a pass of its own."""
