"""The sections of the configuration tree, a file each; `schema.Config` puts them together."""
