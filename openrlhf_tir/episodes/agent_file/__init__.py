"""OpenRLHF's agent files, unmodified: `train.agent_func_path` names a Python file with an `AgentExecutor`, and that
writes the responses.

    rollout actor                                            worker process (worker.py), which alone executes the file
    AgentFile.run(task) ── {"run": prompt, label} ─────────>  executor.execute(prompt, label, ..., llm_engine=LlmEngine)
    engine.generate     <─ {"generate": token ids} ────────   await llm_engine.generate(token_ids, sampling_params)
      recorded          ── token ids, log-probs, text ─────>
    Trajectory          <─ observation_tokens, ranges, ────   what execute returns
                           reward, scores, extra_logs

What is trained are the tokens that the engine sampled, as they were recorded on this side of the pipe (record.py), at
the places that the file gives them; a range that the engine did not sample after exactly these tokens fails its sample.
"""
