"""Tools of any server of verl-tool. Actions of several sessions at the same time go to it as one batch."""
