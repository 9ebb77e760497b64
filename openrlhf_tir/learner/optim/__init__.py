"""What optimizers need besides DeepSpeed's configuration."""
