"""OpenRLHF's agent files, unmodified: the `AgentExecutor` in the file of `train.agent_func_path` writes the responses.

    rollout actor                                            worker process (worker.py), which alone executes the file
    AgentFile.run(task) ── {"run": prompt, label} ─────────>  executor.execute(prompt, label, ..., llm_engine=LlmEngine)
    engine.generate     <─ {"generate": token ids} ────────   await llm_engine.generate(token_ids, sampling_params)
      recorded          ── token ids, log-probs, text ─────>
    Trajectory          <─ observation_tokens, ranges, ────   what execute returns
                           reward, scores, extra_logs

The tokens that are trained are those that the engine sampled, as they were recorded on the actor's side of the pipe
(record.py), at the places that the file gives them. A range that the engine did not sample behind exactly the tokens
before it fails the group.
"""
