"""An advantage estimator and a policy loss of one's own: what they are given, and what is said of one that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.algorithms.advantages import AdvantageInputs, get_estimator
from openrlhf_tir.algorithms.losses.own import load
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, MethodBroken
from tests.unit.algorithms.test_loss_objective import evaluate

INPUTS = AdvantageInputs(np.array([1.0, 0.0]), [np.ones(2, bool), np.ones(3, bool)], options={"scale": 3.0})


def own(tmp_path, text: str, name: str = "mine") -> str:
    (tmp_path / "mine.py").write_text(
        f"import numpy as np\nfrom openrlhf_tir.algorithms.advantages import Estimator\n{text}\n"
    )
    return f"{tmp_path / 'mine.py'}:{name}"


def test_a_function_gets_one_group_and_its_options_and_is_not_whitened(tmp_path):
    estimator = get_estimator(
        own(tmp_path, "def mine(i): return [i.options['scale'] * r * m for r, m in zip(i.rewards_G, i.trained_G)]")
    )
    assert [a.tolist() for a in estimator.fn(INPUTS)] == [[3.0, 3.0], [0.0, 0.0, 0.0]] and estimator.whiten is False


def test_an_estimator_says_whether_the_batch_is_whitened(tmp_path):
    assert get_estimator(own(tmp_path, "mine = Estimator(lambda i: i, whiten=True)")).whiten is True


def test_an_estimator_needs_the_whole_batch_unless_it_says_that_its_group_is_enough(tmp_path):
    """Every place of a field counts: one's own is wrapped, and keeps what it says."""
    said = {"": True, ", by_group=True": False, ", by_group=True, critic=True": True}
    for i, (more, whole) in enumerate(said.items()):
        text = f"mine{i} = Estimator(lambda i: i, whiten=False{more})"
        (tmp_path / str(i)).mkdir()
        assert get_estimator(own(tmp_path / str(i), text, f"mine{i}")).whole_batch is whole
    assert get_estimator(own(tmp_path, "def mine(i): return i")).whole_batch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def mine(i): return [1.0, 2.0]",
            r"mine\.py:3: .*\[\(\), \(\)\].*\[\(2,\), \(3,\)\]",
        ),
        ("def mine(i): return [m / 0.0 for m in i.trained_G]", r"mine\.py:3: .*\[1\.0, 0\.0\]"),
        ("def mine(i):\n    return i.nothing", r"mine\.py:4: AttributeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_does_not_fit_ends_the_run_by_name(tmp_path, text, said):
    with pytest.raises(MethodBroken, match=said):
        get_estimator(own(tmp_path, text)).fn(INPUTS)


def test_a_wrong_signature_is_told_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"mine\(a, b\)"):
        get_estimator(own(tmp_path, "def mine(a, b): return []"))
    with pytest.raises(ConfigError, match=r"actor\.policy_loss_type = .*mine\(\)"):
        load(own(tmp_path, "def mine(): return []"))


@pytest.mark.slow
def test_a_policy_loss_of_ones_own_is_a_loss_per_token_and_the_trainer_takes_the_mean(tmp_path):
    """-ratio * A * scale: ratios 1.5, 0.7, 1.0 and advantages 1, -1, 1 give -(1.5 - 0.7 + 1) * 2 / 3."""
    name = own(
        tmp_path, "def mine(i): return -(i.log_probs - i.rollout_log_probs).exp() * i.advantages * i.options['scale']"
    )
    loss, grad, metrics = evaluate(Config(actor={"policy_loss_type": name, "policy_loss_options": {"scale": 2.0}}))
    assert loss == pytest.approx(-(1.5 - 0.7 + 1) * 2 / 3)
    assert grad == pytest.approx([-1.0, 1.4 / 3, -2 / 3])
    assert metrics["ess"] > 0


@pytest.mark.slow
def test_a_policy_loss_that_is_reduced_already_is_refused(tmp_path):
    with pytest.raises(MethodBroken, match=r"mine\.py:3: .*torch\.Size\(\[\]\)"):
        evaluate(Config(actor={"policy_loss_type": own(tmp_path, "def mine(i): return i.log_probs.mean()")}))


@pytest.mark.slow
def test_a_policy_loss_that_is_an_array_of_numpy_is_refused_by_name(tmp_path):
    with pytest.raises(MethodBroken, match=r"mine\.py:3: .*ndarray"):
        evaluate(Config(actor={"policy_loss_type": own(tmp_path, "def mine(i): return i.log_probs.detach().numpy()")}))
