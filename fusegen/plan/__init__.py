"""What is known of a call before it runs: its tensors and their layouts, its gradients, and where everything lies."""
