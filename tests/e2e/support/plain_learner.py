"""The learner's arithmetic in plain PyTorch on one process, padded and unsharded: what real ranks are compared with."""

from __future__ import annotations

import numpy as np

from .learner_runs import batch, config, cut_batch


def plain_gradient(model, loss) -> dict[str, np.ndarray]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


def plain_logprobs(model, ids, temperature=1.0):
    import torch

    ids = torch.as_tensor(np.asarray(ids), dtype=torch.long)[None]
    return torch.log_softmax(model(ids).logits[0, :-1] / temperature, -1).gather(-1, ids[0, 1:, None])[:, 0]


def plain_policy_loss(model, seed=0, temperature=1.0):
    """Token mean of the clipped objective over the batch of a seed, one sequence at a time, without our learner."""
    import torch

    (_, groups), clip = batch(1, seed=seed), config("", 1).actor.eps_clip_low_high
    terms = []
    for group in groups:
        mean = np.mean([t.reward for t in group.trajectories])
        for t in group.trajectories:
            logp = plain_logprobs(model, np.concatenate([t.prompt_ids, t.token_ids]), temperature)[
                len(t.prompt_ids) - 1 :
            ]
            ratio = (logp - torch.tensor(t.logprobs)).exp()
            terms.append((ratio[t.is_model], torch.full((t.model_tokens,), t.reward - mean)))
    ratio, adv = (torch.cat(column) for column in zip(*terms, strict=True))
    adv = (adv - adv.mean()) / adv.std(correction=0)
    return -torch.minimum(ratio * adv, ratio.clamp(1 - clip[0], 1 + clip[1]) * adv).mean()


def assert_same_gradient(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        scale = np.abs(expected[name]).max()
        assert np.allclose(got[name], expected[name], rtol=1e-3, atol=1e-4 * scale + 1e-8), name


def plain_updates(model, cfg) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the final weights of one batch in its updates, by plain PyTorch."""
    import copy

    import torch

    model = copy.deepcopy(model)
    made, groups = cut_batch(cfg, 0, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=cfg.actor.adam_betas, eps=1e-8, weight_decay=0.0)
    low, high = cfg.actor.eps_clip_low_high

    def logprobs(t):
        ids = torch.as_tensor(np.concatenate([t.prompt_ids, t.token_ids]), dtype=torch.long)[None]
        log_all = torch.log_softmax(model(ids).logits[0, :-1] / 0.7, -1)
        return log_all.gather(-1, ids[0, 1:, None])[:, 0][len(t.prompt_ids) - 1 :][t.is_model]

    samples = {(b, i): t for b, g in enumerate(groups) for i, t in enumerate(g.trajectories)}
    score = {key: t.reward - np.mean([x.reward for x in groups[key[0]].trajectories]) for key, t in samples.items()}
    of_all = np.concatenate([np.full(t.model_tokens, score[key]) for key, t in samples.items()])
    with torch.no_grad():
        old = {key: logprobs(t) for key, t in samples.items()}
    losses = []
    for part in made.updates:
        terms = []
        for key in part:
            ratio, adv = (logprobs(samples[key]) - old[key]).exp(), (score[key] - of_all.mean()) / of_all.std()
            terms.append(-torch.minimum(ratio * adv, ratio.clamp(1 - low, 1 + high) * adv))
        loss = torch.cat(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.actor.max_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach().numpy() for name, p in model.named_parameters()}


def relative(got, expected, start) -> float:
    """L2 distance over the length of the way from `start`."""
    apart = sum(np.square(got[n] - expected[n]).sum() for n in expected)
    return float(np.sqrt(apart / sum(np.square(expected[n] - start[n]).sum() for n in expected)))


def plain_gae(rewards, values, gamma, lambd):
    """From the definition: A_k = sum over j >= k of (gamma lambda)^(j-k) delta_j, in float64."""
    deltas = rewards + gamma * np.append(values[1:], 0.0) - values
    return np.array(
        [sum((gamma * lambd) ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]
    )


def plain_actor_critic(model):
    """(policy loss, value loss) of the batch of seed 0 under GAE, with a critic that is the policy's body and the head
    that the seed draws. The policy is its own reference still: no penalty."""
    import torch

    (_, groups), clip = batch(1, seed=0), config("", 1).actor.eps_clip_low_high
    head = torch.randn(1, 64, generator=torch.Generator().manual_seed(42)) / 65
    terms = []
    for t in (t for group in groups for t in group.trajectories):
        ids, first = np.concatenate([t.prompt_ids, t.token_ids]), len(t.prompt_ids) - 1
        logp = plain_logprobs(model, ids)[first:]
        values = (model.model(torch.as_tensor(ids, dtype=torch.long)[None]).last_hidden_state @ head.T)[0, first:-1, 0][
            t.is_model
        ]
        seen = values.detach().double().numpy()
        adv = plain_gae(np.append(np.zeros(len(seen) - 1), t.reward), seen, 0.9, 0.8)
        terms.append(
            ((logp - torch.tensor(t.logprobs)).exp()[t.is_model], torch.tensor(adv), values, torch.tensor(adv + seen))
        )
    ratio, adv, values, returns = (torch.cat(column) for column in zip(*terms, strict=True))
    explained = 1 - ((returns - values.detach()).var() / returns.var()).item()
    adv = (adv - adv.mean()) / adv.std(correction=0)
    policy = -torch.minimum(ratio * adv, ratio.clamp(1 - clip[0], 1 + clip[1]) * adv).mean()
    return policy, 0.5 * (values - returns).square().mean(), explained


def plain_gradient_of_value(model, loss) -> dict[str, np.ndarray]:
    return {name: g for name, g in plain_gradient(model, loss).items() if name != "lm_head.weight"}
