"""The form of a single turn whose reward the file works out of what OpenRLHF's own executor returns."""

from openrlhf.utils.agent import SingleTurnAgentExecutor


class AgentExecutor(SingleTurnAgentExecutor):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        output = await super().execute(prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images)
        start, end = output["action_ranges"][0]
        said = hf_tokenizer.decode(output["observation_tokens"][start:end], skip_special_tokens=True)
        score = float(said == label)
        return output | {"reward": score, "scores": score, "extra_logs": {"letters": len(said)}}
