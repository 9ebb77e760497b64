"""Reproduce: a published method's claimed effect, in miniature. `openrlhf-tir reproduce NAME` trains every arm of the
comparison and judges it.

    Miniature            claim, base model, arms, and the checks that say whether the effect is seen (miniature.py; one
                         a file in methods/)
        -> bases.py      a base model per lesson and seed, made once and kept
        -> arms.py       each arm by the product's own commands (train, sft, eval), in processes with a deadline; what
                         is finished is read again
        -> measures.py   a run's metrics -> the figures of an arm
        -> page.py       summary.json, the curves, the page

A miniature has the method's own rows, turns and reward, and a model of 167 thousand parameters on problems of one
operation. It shows that the method's mechanism works here, never that the paper's figures hold.
"""
