"""What a person looks at: reports (report/), the same page live (watch.py), trackers (sinks.py). It only reads runs."""
