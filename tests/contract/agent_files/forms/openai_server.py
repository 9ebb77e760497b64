"""The form of an executor that serves an OpenAI endpoint: the engine is asked from a server's thread, and the samples
are put together of its traces.

The agent is a client of that endpoint; with the label "blocking" it is one without asyncio, in a thread of its own.
"""

import asyncio
import json
import threading
import urllib.request
from uuid import uuid4

import aiohttp
import uvicorn
from fastapi import FastAPI
from vllm import SamplingParams


class AgentExecutor:
    def __init__(self):
        self.url, self.traces = "", {}

    def serve(self):
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(body: dict):
            text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
            prompt = self.tokenizer.encode(text, add_special_tokens=False)
            params = SamplingParams(
                max_tokens=min(body["max_tokens"], self.max_length - len(prompt)),
                temperature=body["temperature"],
                logprobs=1,
            )
            said = (await self.engine.generate(prompt, params)).outputs[0]
            logprobs = [by_id[i].logprob for i, by_id in zip(said.token_ids, said.logprobs, strict=True)]
            on_main = threading.current_thread() is threading.main_thread()
            self.traces.setdefault(body["session_id"], []).append((prompt, said.token_ids, logprobs, on_main))
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": said.text},
                "finish_reason": said.finish_reason,
            }
            return {"id": uuid4().hex, "object": "chat.completion", "model": body["model"], "choices": [choice]}

        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
        listening = config.bind_socket()
        listening.listen()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
        server = uvicorn.Server(config)
        threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True).start()

    async def ask(self, body):
        async with aiohttp.ClientSession(raise_for_status=True) as http, http.post(self.url, json=body) as response:
            return await response.json()

    def ask_blocking(self, body):
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        self.tokenizer, self.engine, self.max_length = hf_tokenizer, llm_engine, max_length
        if not self.url:
            self.serve()
        session, messages = uuid4().hex, [{"role": "user", "content": prompt}]
        for follow_up in ("env", ""):
            body = {
                "model": "policy",
                "session_id": session,
                "messages": messages,
                "max_tokens": 8,
                "temperature": sampling_params.temperature,
            }
            reply = await (asyncio.to_thread(self.ask_blocking, body) if label == "blocking" else self.ask(body))
            messages = [
                *messages,
                reply["choices"][0]["message"],
                *([{"role": "user", "content": follow_up}] if follow_up else []),
            ]
        traces = self.traces.pop(session)
        tokens = traces[-1][0] + traces[-1][1]
        logprobs = [0.0] * len(tokens)
        for before, sampled, values, _ in traces:
            logprobs[len(before) : len(before) + len(sampled)] = values
        return {
            "prompt": prompt,
            "label": label,
            "observation_tokens": tokens,
            "action_ranges": [(len(before), len(before) + len(sampled)) for before, sampled, *_ in traces],
            "rollout_log_probs": logprobs,
            "truncated": False,
            "reward": None,
            "scores": None,
            "extra_logs": {"on_main_thread": sum(on_main for *_, on_main in traces)},
        }
