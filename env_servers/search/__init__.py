"""search: a retrieval environment. action = query, observation = the best passages; Search-R1's /retrieve beside it."""
