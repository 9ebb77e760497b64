"""Updates: what a batch's optimiser steps are made of and tell: parts that were accumulated before (early.py), metrics,
and which samples left one out (not_finite.py)."""
