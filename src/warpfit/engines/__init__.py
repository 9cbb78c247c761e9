"""Ways to run training steps."""
