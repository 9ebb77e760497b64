"""Prepare data before a run: check every row, convert schemas, and leave out rows that are in an evaluation set or not
worth training on.

files.py            writes rows to a file, or nothing: JSONL, JSON or parquet by its name
summary.py          what a data set holds: rows, bad rows, lengths, repetitions, contradictions
convert.py          rows of any schema -> another one, and the JSONL of this project
official.py         a problem -> a row as a method's own code publishes it
function_calls.py   xLAM, Hammer and ToolACE -> Tool-N1's raw rows, cut at every call
augment.py          Tool-N1's optional augmentation: masked names, questions that no function fits
code_traces.py      worked solutions -> ReTool's demonstrations with code, verified twice and rewritten by a model
decontaminate.py    which rows share n-grams with an evaluation set
outcomes.py         samples of a run or an evaluation -> pass rates of rows, by epoch
learning_impact.py  LIMR: how a row's pass rates follow the learning of the whole
"""
