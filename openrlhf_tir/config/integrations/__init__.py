"""Scripts and signatures of other projects: what they mean in this one's settings."""
