"""Ray: which process runs where, actors and their handles, the bodies of the commands. The only importer of Ray."""
