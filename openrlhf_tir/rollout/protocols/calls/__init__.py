"""Parsers of tool calls: text of the model -> calls. No parser raises, whatever the text."""
