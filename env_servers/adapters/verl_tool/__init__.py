"""Tools of any server of verl-tool. What sessions do at the same time goes to it as one batch."""
