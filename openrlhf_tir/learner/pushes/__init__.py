"""The learner's side of weight pushes as delta files and broadcasts. weights_file.py writes full files."""
