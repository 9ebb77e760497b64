"""The engines: vLLM, and a deterministic one for tests. What an engine can do is declared in ports.py."""
